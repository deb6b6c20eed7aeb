"""Who answers at many addresses, and as whom he sees the client: by TCP and by UDP, many at a time.

    reach.py serve NAME PORT ADDRESS...     answers at these addresses with NAME and the client's address
    reach.py ask                            asks for every line of its input
    reach.py flow ADDRESS PORT              one UDP socket, a datagram every 20 ms, until it is killed

A line for `ask` is "KIND FROM ADDRESS PORT LABEL...": FROM is the address to be bound to, or "any". For each are
two lines of output, "tcp|NAME PEER|LABEL" and "udp|...", or the reason for no answer in place of NAME and PEER. What is
not answered in time is asked once more. KIND is "one" or "same": "same" asks several times, and tells whether one server
answered all.

`flow` prints a line "NAME PEER" whenever it is another than before.
"""

import errno
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PATIENCE = 1.0
# The second time.
MORE_PATIENCE = 5.0
# Of a server, for the rest of a request: a client may wait for a core.
SERVER_PATIENCE = 60.0
# Connections at a time.
WORKERS = 48
# Times that "same" asks.
REPEATS = 5
REQUEST = b"?" * 1000
TIMEOUT = "timeout"


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve_tcp(listener, name):
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=answer_tcp, args=(connection, name, peer), daemon=True).start()


def answer_tcp(connection, name, peer):
    with connection:
        connection.settimeout(SERVER_PATIENCE)
        try:
            if len(connection.recv(len(REQUEST), socket.MSG_WAITALL)) == len(REQUEST):
                connection.sendall(f"{name} {peer[0]}".encode())
        except OSError as error:
            print(f"{name}: {peer}: {error}", file=sys.stderr, flush=True)


def serve_udp(server, name):
    while True:
        try:
            _, peer = server.recvfrom(65536)
            server.sendto(f"{name} {peer[0]}".encode(), peer)
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


def ask_once(protocol, own, address, port, patience=PATIENCE):
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(family(address), kind) as client:
            client.settimeout(patience)
            if own != "any":
                client.bind((own, 0))
            client.connect((address, port))
            client.sendall(REQUEST)
            return client.recv(1000).decode() or "closed"
    except TimeoutError:
        return TIMEOUT
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def ask_twice(protocol, own, address, port):
    answer = ask_once(protocol, own, address, port)
    return ask_once(protocol, own, address, port, MORE_PATIENCE) if answer == TIMEOUT else answer


def ask(protocol, kind, own, address, port):
    answer = ask_twice(protocol, own, address, port)
    if kind == "one" or " " not in answer:
        return answer
    # What the first question has made the node remember holds for all that follow.
    answers = {ask_twice(protocol, own, address, port).split(" ")[0] for _ in range(REPEATS)}
    return "one server" if len(answers) == 1 and TIMEOUT not in answers else f"several servers {sorted(answers)}"


def ask_all(lines):
    questions = []
    for line in lines:
        kind, own, address, port, label = line.rstrip("\n").split(" ", 4)
        questions += [(protocol, kind, own, address, int(port), label) for protocol in ("tcp", "udp")]
    with ThreadPoolExecutor(WORKERS) as pool:
        answers = pool.map(lambda question: ask(*question[:5]), questions)
        for question, answer in zip(questions, answers):
            print(f"{question[0]}|{answer}|{question[5]}", flush=True)


def flow(address, port):
    last = None
    with socket.socket(family(address), socket.SOCK_DGRAM) as client:
        client.settimeout(0.02)
        client.connect((address, port))
        while True:
            try:
                client.send(REQUEST)
                answer = client.recv(1000).decode()
                if answer != last:
                    print(answer, flush=True)
                    last = answer
            except OSError:
                # Lost while the endpoint changes, or refused.
                pass
            time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    elif sys.argv[1] == "flow":
        flow(sys.argv[2], int(sys.argv[3]))
    else:
        ask_all(sys.stdin)
