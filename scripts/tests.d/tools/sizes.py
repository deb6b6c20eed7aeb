"""Every payload size, both ways: an echo of known content over TCP and UDP.

    sizes.py serve ADDRESS              answers until it is killed
    sizes.py ask ADDRESS SIZE...        asks once per size and protocol; FIRST-LAST are all from one to the other;
                                        exit 1 on any difference

A request of n bytes holds request(n), its answer holds answer(n): two different cuts of one constant
random block, so bytes that are lost, doubled, moved or echoed without being read all show.
"""

import random
import socket
import sys
import threading
import time

from packets import family

UDP_PORT = 5001
TCP_PORT = 5002
PATIENCE = 3.0
# After so many wrong answers of a protocol no more are asked for.
MOST = 5
BLOCK = random.Random(20240229).randbytes(80000)


def request(size):
    start = size * 7 % 4093
    return BLOCK[start : start + size]


def answer(size):
    start = size * 11 % 4099 + 4100
    return BLOCK[start : start + size]


def read_all(connection):
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def reply(protocol, data, send):
    if data == request(len(data)):
        send(answer(len(data)))
    else:
        print(f"{protocol}: a request of {len(data)} bytes with wrong content", flush=True)


def serve_udp(server):
    while True:
        data, peer = server.recvfrom(65536)
        reply("UDP", data, lambda text: server.sendto(text, peer))


def serve(address):
    server = socket.socket(family(address), socket.SOCK_DGRAM)
    server.bind((address, UDP_PORT))
    listener = socket.create_server((address, TCP_PORT), family=family(address), backlog=128)
    threading.Thread(target=serve_udp, args=(server,), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            try:
                reply("TCP", read_all(connection), connection.sendall)
            except OSError as error:
                print(f"TCP: {error}", flush=True)


def wait_for(address):
    for _ in range(50):
        try:
            return socket.create_connection((address, TCP_PORT), PATIENCE).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
    return sys.exit(f"no server at {address}")


def ask(address, sizes):
    wait_for(address)
    client = socket.socket(family(address), socket.SOCK_DGRAM)
    client.connect((address, UDP_PORT))
    client.settimeout(PATIENCE)

    def over_udp(size):
        client.send(request(size))
        return client.recv(65536)

    def over_tcp(size):
        with socket.create_connection((address, TCP_PORT), PATIENCE) as connection:
            connection.sendall(request(size))
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    return [wrong_of(name, address, sizes, exchange) for name, exchange in (("UDP", over_udp), ("TCP", over_tcp))]


def wrong_of(name, address, sizes, exchange):
    """How many sizes were not answered right; says which."""
    wrong, start = [], time.monotonic()
    for size in sizes:
        try:
            if exchange(size) != answer(size):
                wrong.append(f"  {size} bytes: wrong answer")
        except OSError as error:
            wrong.append(f"  {size} bytes: {error}")
        if len(wrong) >= MOST:
            break
    seconds = time.monotonic() - start
    print(f"{name} to {address}: {len(sizes)} sizes, {len(wrong)} wrong, {seconds:.1f} s", *wrong, sep="\n")
    return len(wrong)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ranges = [word.split("-") for word in sys.argv[3:]]
        sys.exit(any(ask(sys.argv[2], [size for ends in ranges for size in range(int(ends[0]), int(ends[-1]) + 1)])))
