"""Large TCP transfers; both ends print the number of bytes and their sha256.

    bulk.py receive ADDRESS PORT
    bulk.py send ADDRESS PORT BYTES [BYTES_PER_SECOND]
    bulk.py flows COUNT BYTES FROM,TO,ADDRESS...     all at once, COUNT for each pair of pods of the lab LAB_PREFIX;
                                                     fails if not all arrives as it was sent

With a rate TCP paces itself. On SIGTERM the sender ends early, with what it has sent.
"""

import hashlib
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ending import Ending
from packets import family
from spaces import Findings, inside

CHUNK = 1 << 20
PATIENCE = 60.0
SO_MAX_PACING_RATE = 47


def take(listener):
    """What came."""
    listener.settimeout(PATIENCE)
    connection, _ = listener.accept()
    total, digest, view = 0, hashlib.sha256(), memoryview(bytearray(CHUNK))
    with listener, connection:
        connection.settimeout(PATIENCE)
        while count := connection.recv_into(view):
            digest.update(view[:count])
            total += count
    return f"{total} {digest.hexdigest()}"


def give(connection, ending, size, rate=None):
    """What it has sent."""
    digest, sent, block = hashlib.sha256(), 0, memoryview(bytearray(os.urandom(CHUNK)))
    with connection:
        connection.settimeout(PATIENCE)
        if rate:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        chunk = min(CHUNK, rate // 10) if rate else CHUNK
        while sent < size and not ending.told:
            block[:8] = sent.to_bytes(8, "big")  # no two chunks are equal
            part = block[: min(chunk, size - sent)]
            connection.sendall(part)
            digest.update(part)
            sent += len(part)
    return f"{sent} {digest.hexdigest()}"


def connect(address, port):
    for _ in range(50):
        try:
            return socket.create_connection((address, port), PATIENCE)
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit(f"no receiver at {address} port {port}")


def flows(count, size, *ways):
    findings, ending, transfers = Findings(), Ending(), []
    with ThreadPoolExecutor(2 * count * len(ways)) as pool:
        for way in ways * count:
            sender, receiver, address = way.split(",")
            listener = inside(receiver, lambda: socket.create_server((address, 0), family=family(address)))
            taken = pool.submit(take, listener)
            connection = inside(sender, lambda: connect(address, listener.getsockname()[1]))
            transfers.append((way, pool.submit(give, connection, ending, size), taken))
        for way, given, taken in transfers:
            findings.equal(f"bytes and sha256 of a flow of {way}", given.result(), taken.result())
    findings.end()


def main(kind, address, number, *more):
    if kind == "flows":
        flows(int(address), int(number), *more)
    elif kind == "send":
        print(give(connect(address, int(number)), Ending(), *map(int, more)))
    else:
        print(take(socket.create_server((address, int(number)), family=family(address))))


if __name__ == "__main__":
    main(*sys.argv[1:])
