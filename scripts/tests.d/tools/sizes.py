"""Every payload size, both ways: an echo of known content over TCP and UDP.

    sizes.py serve ADDRESS              answers until it is killed
    sizes.py ask ADDRESS SIZE...        asks once per size and protocol; FIRST-LAST are all from one to the other; exit 1
                                        on any difference

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


def serve_tcp(listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            try:
                data = read_all(connection)
                if data == request(len(data)):
                    connection.sendall(answer(len(data)))
                else:
                    print(f"TCP: a request of {len(data)} bytes with wrong content", flush=True)
            except OSError as error:
                print(f"TCP: {error}", flush=True)


def serve_udp(server):
    while True:
        data, peer = server.recvfrom(65536)
        if data == request(len(data)):
            server.sendto(answer(len(data)), peer)
        else:
            print(f"UDP: a request of {len(data)} bytes with wrong content", flush=True)


def serve(address):
    server = socket.socket(family(address), socket.SOCK_DGRAM)
    server.bind((address, UDP_PORT))
    listener = socket.create_server((address, TCP_PORT), family=family(address), backlog=128)
    threading.Thread(target=serve_udp, args=(server,), daemon=True).start()
    serve_tcp(listener)


def wait_for(address):
    for _ in range(50):
        try:
            socket.create_connection((address, TCP_PORT), PATIENCE).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit(f"no server at {address}")


def ask_udp(address, sizes):
    wrong = []
    client = socket.socket(family(address), socket.SOCK_DGRAM)
    client.connect((address, UDP_PORT))
    client.settimeout(PATIENCE)
    for size in sizes:
        client.send(request(size))
        try:
            if client.recv(65536) != answer(size):
                wrong.append((size, "wrong answer"))
        except OSError as error:
            wrong.append((size, str(error)))
            if len(wrong) >= 5:
                break
    return wrong


def ask_tcp(address, sizes):
    wrong = []
    for size in sizes:
        try:
            with socket.create_connection((address, TCP_PORT), PATIENCE) as client:
                client.sendall(request(size))
                client.shutdown(socket.SHUT_WR)
                if read_all(client) != answer(size):
                    wrong.append((size, "wrong answer"))
        except OSError as error:
            wrong.append((size, str(error)))
        if len(wrong) >= 5:
            break
    return wrong


def ask(address, sizes):
    wait_for(address)
    bad = False
    for name, exchange in (("UDP", ask_udp), ("TCP", ask_tcp)):
        start = time.monotonic()
        wrong = exchange(address, sizes)
        seconds = time.monotonic() - start
        print(f"{name} to {address}: {len(sizes)} sizes, {len(wrong)} wrong, {seconds:.1f} s")
        for size, reason in wrong:
            print(f"  {size} bytes: {reason}")
        bad = bad or bool(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ranges = [word.split("-") for word in sys.argv[3:]]
        sys.exit(ask(sys.argv[2], [size for ends in ranges for size in range(int(ends[0]), int(ends[-1]) + 1)]))
