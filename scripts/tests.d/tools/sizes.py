"""Every payload size, both ways: an echo of known content over TCP and UDP.

    sizes.py serve ADDRESS[,ADDRESS...]         answers until it is killed
    sizes.py ask ADDRESS[,ADDRESS...] SIZE...   asks each once per size and protocol, over one connection of TCP;
                                                FIRST-LAST are all from one to the other; exit 1 on any difference

A request of n bytes holds request(n), its answer holds answer(n): two different cuts of one constant
random block, so bytes that are lost, doubled, moved or echoed without being read all show.
"""

import contextlib
import random
import socket
import sys
import threading

from bulk import connect
from packets import family

UDP_PORT, TCP_PORT = 5001, 5002
PATIENCE = 20.0
BLOCK = random.Random(20240229).randbytes(80000)


def request(size):
    return BLOCK[size * 7 % 4093 :][:size]


def answer(size):
    return BLOCK[size * 11 % 4099 + 4100 :][:size]


def answer_to(data):
    """One with wrong content has an answer that is wrong too."""
    return answer(len(data)) if data == request(len(data)) else bytes(len(data))


def serve_udp(server):
    while True:
        data, peer = server.recvfrom(65536)
        server.sendto(answer_to(data), peer)


def serve_tcp(listener):
    """Each request has its length before it; one client after another."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while head := stream.read(4):
                connection.sendall(answer_to(stream.read(int.from_bytes(head))))


def serve(address):
    server = socket.socket(family(address), socket.SOCK_DGRAM)
    server.bind((address, UDP_PORT))
    threading.Thread(target=serve_udp, args=(server,)).start()
    listener = socket.create_server((address, TCP_PORT), family=family(address))
    threading.Thread(target=serve_tcp, args=(listener,)).start()


def ask(address, sizes):
    """How many sizes were not answered right."""
    stream, client, wrong = connect(address, TCP_PORT), socket.socket(family(address), socket.SOCK_DGRAM), []
    client.connect((address, UDP_PORT))
    stream.settimeout(PATIENCE)
    client.settimeout(PATIENCE)
    answers = stream.makefile("rb")
    for size in sizes:
        try:
            client.send(request(size))
            stream.sendall(size.to_bytes(4) + request(size))
            if not client.recv(65536) == answers.read(size) == answer(size):
                wrong.append(f"  {size} bytes: wrong answer")
        except OSError as error:
            wrong.append(f"  {size} bytes: {error}")
        if len(wrong) >= 5:
            break
    print(f"{address}: {len(sizes)} sizes, {len(wrong)} wrong", *wrong, sep="\n")
    return len(wrong)


if __name__ == "__main__":
    RANGES = [[int(end) for end in word.split("-")] for word in sys.argv[3:]]
    SIZES = [size for ends in RANGES for size in range(ends[0], ends[-1] + 1)]
    RESULTS = [serve(address) if sys.argv[1] == "serve" else ask(address, SIZES) for address in sys.argv[2].split(",")]
    sys.exit(any(RESULTS))
