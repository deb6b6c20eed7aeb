"""One large TCP transfer; both ends print the number of bytes and their sha256.

    bulk.py receive ADDRESS PORT [pause]     with `pause` also the longest time between two receives, milliseconds
    bulk.py send ADDRESS PORT BYTES [BYTES_PER_SECOND]

With a rate TCP paces itself. On SIGTERM the sender ends early, with what it has sent.
"""

import hashlib
import os
import socket
import sys
import time

from ending import Ending
from packets import family

CHUNK = 1 << 20
PATIENCE = 60.0
SO_MAX_PACING_RATE = 47


def receive(address, port, *wanted):
    with socket.create_server((address, port), family=family(address)) as listener:
        listener.settimeout(PATIENCE)
        connection, _ = listener.accept()
    total, digest, buffer = 0, hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    with connection:
        connection.settimeout(PATIENCE)
        longest, before = 0.0, None
        while count := connection.recv_into(buffer):
            now = time.monotonic()
            longest, before = max(longest, now - (before or now)), now
            digest.update(view[:count])
            total += count
    print(total, digest.hexdigest())
    if wanted:
        print(round(longest * 1000))


def connect(address, port):
    for _ in range(50):
        try:
            return socket.create_connection((address, port), PATIENCE)
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit(f"no receiver at {address} port {port}")


def send(address, port, size, rate=None):
    ending = Ending()
    digest, sent = hashlib.sha256(), 0
    block = bytearray(os.urandom(CHUNK))
    view = memoryview(block)
    with connect(address, port) as connection:
        connection.settimeout(PATIENCE)
        if rate:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        chunk = min(CHUNK, rate // 10) if rate else CHUNK
        while sent < size and not ending.told:
            block[:8] = sent.to_bytes(8, "big")  # no two chunks are equal
            part = view[: min(chunk, size - sent)]
            connection.sendall(part)
            digest.update(part)
            sent += len(part)
    print(sent, digest.hexdigest())


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        send(sys.argv[2], *map(int, sys.argv[3:]))
