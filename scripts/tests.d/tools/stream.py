"""One TCP connection that carries small messages both ways all the time, and the longest silence on it.

    stream.py serve ADDRESS PORT            sends back what it gets, of one connection, until that ends
    stream.py talk ADDRESS PORT SECONDS     a message of 512 bytes every 5 ms, and the whole of every answer compared

`talk` prints 'connected', and in the end 'N intact, longest silence M ms', or ends with an error: the connection was reset, an answer differed, or
one did not come within 10 s.
"""

import random
import socket
import sys
import threading
import time

from packets import family

SIZE = 512
INTERVAL = 0.005
PATIENCE = 10.0


def message(number):
    """What is sent, different for each."""
    return random.Random(number).randbytes(SIZE)


def serve(address, port):
    with socket.create_server((address, port), family=family(address)) as listener:
        listener.settimeout(60)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(65536):
            connection.sendall(data)


def send(connection, messages):
    begin = time.monotonic()
    for number in range(messages):
        # Not by adding up intervals: the sum of their errors is one message more or less.
        time.sleep(max(0, begin + number * INTERVAL - time.monotonic()))
        connection.sendall(message(number))
    connection.shutdown(socket.SHUT_WR)


def connect(address, port):
    """The server may still be starting."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, port), timeout=PATIENCE)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def talk(address, port, seconds):
    messages = round(seconds / INTERVAL)
    with connect(address, port) as connection:
        print("connected", flush=True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender = threading.Thread(target=send, args=(connection, messages), daemon=True)
        sender.start()
        number, silence, before, rest = 0, 0.0, time.monotonic(), b""
        while data := connection.recv(65536):
            now = time.monotonic()
            silence, before = max(silence, now - before), now
            rest += data
            while len(rest) >= SIZE:
                if rest[:SIZE] != message(number):
                    sys.exit(f"answer {number} differs from its message")
                number, rest = number + 1, rest[SIZE:]
        sender.join()
    if rest or number != messages:
        sys.exit(f"{number} whole answers to {messages} messages")
    print(f"{number} intact, longest silence {silence * 1000:.0f} ms")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        talk(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
