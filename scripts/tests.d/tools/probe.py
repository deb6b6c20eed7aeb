"""Whether new flows come through, and for how long they did not: UDP datagrams and their echo.

    probe.py serve PORT ADDRESS...                answers at these addresses until it is killed
    probe.py ask ADDRESS PORT COUNT INTERVAL      COUNT datagrams, INTERVAL seconds apart

Each datagram goes out from a port of its own, so to a firewall each is a new flow. `ask` ends half a second after
the last and prints one JSON object: {"sent": n, "answered": n, "gap": the longest time without an answer, ms}.
"""

import json
import selectors
import socket
import sys
import time

PATIENCE = 0.5


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(port, addresses):
    waiting = selectors.DefaultSelector()
    for address in addresses:
        server = socket.socket(family(address), socket.SOCK_DGRAM)
        server.bind((address, port))
        waiting.register(server, selectors.EVENT_READ)
    while True:
        for ready, _ in waiting.select():
            data, peer = ready.fileobj.recvfrom(2048)
            ready.fileobj.sendto(data, peer)


def ask(address, port, count, interval):
    waiting = selectors.DefaultSelector()
    start = time.monotonic()
    answers = []

    def listen_until(moment):
        while (left := moment - time.monotonic()) > 0:
            for ready, _ in waiting.select(left):
                try:
                    ready.fileobj.recv(2048)
                    answers.append(time.monotonic())
                except OSError:
                    pass  # an ICMP error: no answer
                waiting.unregister(ready.fileobj)
                ready.fileobj.close()

    for number in range(count):
        listen_until(start + number * interval)
        client = socket.socket(family(address), socket.SOCK_DGRAM)
        client.connect((address, port))
        waiting.register(client, selectors.EVENT_READ)
        try:
            client.send(b"probe")
        except OSError:
            pass  # refused on the spot, or the error of the route: no answer
    last = time.monotonic()
    listen_until(last + PATIENCE)
    moments = [start, *answers, max([last, *answers])]
    gap = max(after - before for before, after in zip(moments, moments[1:]))
    print(json.dumps({"sent": count, "answered": len(answers), "gap": round(gap * 1000)}))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3:])
    else:
        ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
