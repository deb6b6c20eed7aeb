"""TCP connections that are held for long, and the longest pause on each.

    held.py serve PORT ADDRESS...           sends back what it gets, of any number of connections, until it is killed
    held.py hold ADDRESS PORT               connects, and prints 'connected'; sends a message every 20 ms and awaits each
                                            answer. It prints 'N answered' after every tenth, and on SIGTERM 'N answered,
                                            longest pause M ms'

`hold` ends with an error when the connection is reset or closed, or an answer is wrong or does not come within a minute.
"""

import socket
import sys
import threading
import time

from ending import Ending
from packets import family

SIZE = 64
INTERVAL = 0.02
PATIENCE = 60.0


def answer(connection):
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(65536):
            connection.sendall(data)


def serve(port, addresses):
    def accept(listener):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    for address in addresses:
        listener = socket.create_server((address, port), family=family(address))
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    threading.Event().wait()


def exchange(connection, number):
    message = number.to_bytes(8) * (SIZE // 8)
    connection.sendall(message)
    got = b""
    while len(got) < SIZE:
        part = connection.recv(SIZE - len(got))
        if not part:
            sys.exit(f"the connection was closed after {number} answers")
        got += part
    if got != message:
        sys.exit(f"answer {number} is wrong")


def hold(address, port):
    ending, count, longest = Ending(), 0, 0.0
    with socket.create_connection((address, port), PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("connected", flush=True)
        while not ending.told:
            begin = time.monotonic()
            try:
                exchange(connection, count)
            except OSError as error:
                sys.exit(f"the connection ended after {count} answers: {error}")
            count += 1
            if count % 10 == 0:
                print(f"{count} answered", flush=True)
            longest = max(longest, time.monotonic() - begin)
            time.sleep(INTERVAL)
    print(f"{count} answered, longest pause {longest * 1000:.0f} ms")


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), sys.argv[3:])
else:
    hold(sys.argv[2], int(sys.argv[3]))
