"""One TCP and one UDP exchange, in which the server tells who it is and whom it saw as its peer.

    exchange.py serve NAME PORT ADDRESS...              answers at these addresses until it is killed
    exchange.py ask                                     asks once for every line of its input

A line is "FROM ADDRESS PORT": FROM is the address to be bound to, or "any". For each the answer is two lines,
"tcp NAME PEER" and "udp NAME PEER", or what went wrong in place of NAME and PEER.

Over TCP each side sends 1 MiB, and the SHA-256 of what it got is compared with that of what was sent; over UDP one
datagram goes each way.
"""

import hashlib
import json
import random
import socket
import sys
import threading

SIZE = 1 << 20
REQUEST = random.Random(1).randbytes(SIZE)
ANSWER = random.Random(2).randbytes(SIZE)
DATAGRAM = REQUEST[:1000]
PATIENCE = 5.0


def digest(data):
    return hashlib.sha256(data).hexdigest()


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def read_all(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def report(name, peer, data):
    return json.dumps({"name": name, "peer": peer[0], "got": digest(data)}).encode()


def answer_tcp(connection, name, peer):
    with connection:
        connection.settimeout(PATIENCE)
        try:
            connection.sendall(report(name, peer, read_all(connection)) + b"\n" + ANSWER)
        except OSError as error:
            print(f"{name}: {peer}: {error}", file=sys.stderr, flush=True)


def serve_tcp(listener, name):
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=answer_tcp, args=(connection, name, peer), daemon=True).start()


def serve_udp(server, name):
    while True:
        data, peer = server.recvfrom(65536)
        server.sendto(report(name, peer, data), peer)


def serve(name, port, addresses):
    for address in addresses:
        listener = socket.create_server((address, port), family=family(address))
        server = socket.socket(family(address), socket.SOCK_DGRAM)
        server.bind((address, port))
        threading.Thread(target=serve_tcp, args=(listener, name)).start()
        threading.Thread(target=serve_udp, args=(server, name)).start()


def told(line, sent):
    answer = json.loads(line)
    if answer["got"] != digest(sent):
        raise ValueError("the server got other bytes")
    return f'{answer["name"]} {answer["peer"]}'


def ask_tcp(client):
    client.sendall(REQUEST)
    client.shutdown(socket.SHUT_WR)
    line, _, data = read_all(client).partition(b"\n")
    if digest(data) != digest(ANSWER):
        raise ValueError(f"{len(data)} bytes, or others than the server sent")
    return told(line, REQUEST)


def ask_udp(client):
    client.send(DATAGRAM)
    return told(client.recv(65536), DATAGRAM)


def ask(own, address, port):
    for name, kind, exchange in (("tcp", socket.SOCK_STREAM, ask_tcp), ("udp", socket.SOCK_DGRAM, ask_udp)):
        try:
            with socket.socket(family(address), kind) as client:
                client.settimeout(PATIENCE)
                if own != "any":
                    client.bind((own, 0))
                client.connect((address, port))
                print(name, exchange(client), flush=True)
        except (OSError, ValueError) as error:
            print(name, f"none ({error})", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        for question in sys.stdin:
            bound, to, port = question.split()
            ask(bound, to, int(port))
