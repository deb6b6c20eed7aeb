"""TCP and UDP exchanges, in which the server tells who it is and whom it saw as its peer.

    exchange.py serve NAME PORT ADDRESS...      answers at these addresses until it is killed
    exchange.py ask                             asks for every line of its input, many at a time
    exchange.py flow ADDRESS PORT               one UDP socket, a datagram every 50 ms, until it is killed

A line for `ask` is "FROM ADDRESS PORT" or "KIND FROM ADDRESS PORT LABEL...": FROM is the address to be bound to, or "any". For
each are two lines of output: "tcp NAME PEER" and "udp NAME PEER", or with a label "tcp|NAME PEER|LABEL" and so on, or the
reason for no answer in place of NAME and PEER. A datagram that is not answered in time is sent once more. KIND:

    one     one question of 1,000 bytes
    much    over TCP 1 MiB each way
    lost    as one, of which no answer is expected: with less patience
    same    several times: whether one server answered all

Over TCP each side sends as much, and the SHA-256 of what it got is compared with that of what was sent; over UDP one datagram
goes each way. `flow` prints a line "NAME PEER" whenever it is another than before.
"""

import errno
import hashlib
import json
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

MOST = 1 << 20
REQUEST = random.Random(1).randbytes(MOST)
ANSWER = random.Random(2).randbytes(MOST)
LITTLE = 1000
# Seconds: of a datagram the first and the second time, and of a connection; a client that waits for a core is served for longer.
PATIENCE = {"udp": (1.5, 20.0), "tcp": (30.0,), "lost": (1.5,)}
SERVER_PATIENCE = 60.0
# Exchanges at a time, and of these with much to send: more would fill the queue of a server's socket, or of a tunnel device.
WORKERS = 12
MUCH = threading.Semaphore(1)
# Times that "same" asks.
REPEATS = 5


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
        connection.settimeout(SERVER_PATIENCE)
        try:
            data = read_all(connection)
            connection.sendall(report(name, peer, data) + b"\n" + ANSWER[: len(data)])
        except OSError as error:
            print(f"{name}: {peer}: {error}", file=sys.stderr, flush=True)


def serve_tcp(listener, name):
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=answer_tcp, args=(connection, name, peer), daemon=True).start()


def serve_udp(server, name):
    while True:
        try:
            data, peer = server.recvfrom(65536)
            server.sendto(report(name, peer, data), peer)
        except OSError as error:
            # A client that has gone.
            print(f"{name}: {error}", file=sys.stderr, flush=True)


def serve(name, port, addresses):
    for address in addresses:
        listener = socket.create_server((address, port), family=family(address), backlog=512)
        server = socket.socket(family(address), socket.SOCK_DGRAM)
        server.bind((address, port))
        threading.Thread(target=serve_tcp, args=(listener, name)).start()
        threading.Thread(target=serve_udp, args=(server, name)).start()


def told(line, sent):
    answer = json.loads(line)
    if answer["got"] != digest(sent):
        raise ValueError("the server got other bytes")
    return f'{answer["name"]} {answer["peer"]}'


def exchange(protocol, client, size):
    client.sendall(REQUEST[:size])
    if protocol == "udp":
        return told(client.recv(65536), REQUEST[:size])
    client.shutdown(socket.SHUT_WR)
    line, _, data = read_all(client).partition(b"\n")
    if data != ANSWER[:size]:
        raise ValueError(f"{len(data)} bytes, or others than the server sent")
    return told(line, REQUEST[:size])


def ask_once(protocol, kind, own, address, port, patience):
    try:
        with socket.socket(family(address), socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM) as client:
            client.settimeout(patience)
            if own != "any":
                client.bind((own, 0))
            client.connect((address, port))
            if kind != "much" or protocol == "udp":
                return exchange(protocol, client, LITTLE)
            with MUCH:
                return exchange(protocol, client, MOST)
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    except ValueError as error:
        return f"none ({error})"


def ask(protocol, kind, *where):
    for patience in PATIENCE["lost" if kind == "lost" else protocol]:
        answer = ask_once(protocol, kind, *where, patience)
        if answer != "timeout":
            break
    return answer


def answered(protocol, kind, *where):
    answer = ask(protocol, kind, *where)
    if kind != "same" or " " not in answer:
        return answer
    # What the first question has made the node remember holds for all that follow.
    answers = {ask(protocol, kind, *where).split(" ")[0] for _ in range(REPEATS)}
    return "one server" if len(answers) == 1 and "timeout" not in answers else f"several servers {sorted(answers)}"


def ask_all(lines):
    questions = []
    for line in lines:
        words = line.rstrip("\n").split(" ", 4)
        kind, own, address, port, label = words if len(words) > 3 else ["much", *words, None]
        questions += [(protocol, kind, own, address, int(port), label) for protocol in ("tcp", "udp")]
    with ThreadPoolExecutor(WORKERS) as pool:
        answers = pool.map(lambda question: answered(*question[:5]), questions)
        for (protocol, *_, label), answer in zip(questions, answers):
            print(f"{protocol} {answer}" if label is None else f"{protocol}|{answer}|{label}", flush=True)


def flow(address, port):
    last = None
    with socket.socket(family(address), socket.SOCK_DGRAM) as client:
        client.settimeout(0.05)
        client.connect((address, port))
        while True:
            try:
                client.send(REQUEST[:LITTLE])
                answer = told(client.recv(1000), REQUEST[:LITTLE])
                if answer != last:
                    print(answer, flush=True)
                    last = answer
            except OSError:
                # Lost while the endpoint changes, or refused.
                pass
            time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    elif sys.argv[1] == "flow":
        flow(sys.argv[2], int(sys.argv[3]))
    else:
        ask_all(sys.stdin)
