"""UDP datagrams at a steady rate, each of them answered, and when they came.

    steady.py serve ADDRESS PORT                 sends each datagram back; on SIGTERM prints when each came (seconds since
                                                 1970, by the kernel's time stamp) and its number, a line each
    steady.py send SOURCE PORT ADDRESS PORT RATE [options]
                                                 sends RATE datagrams a second until SIGTERM; prints then 'N sent,
                                                 M answered' once the last answers had time to come, then a line for
                                                 each datagram without an answer: when it was sent, and its number;
                                                 with `options` they have IP options, and no program of the kernel path
                                                 carries them

SO_RCVBUFFORCE needs root: a buffer within the usual limit overflows while a process waits half a second for a core.
"""

import socket
import struct
import sys
import threading
import time

from ending import Ending
from packets import family

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
# RFC 791: three times no operation, and the end of the list.
NO_OPERATION = bytes([1, 1, 1, 0])


def serve(address, port):
    arrivals = []
    with socket.socket(family(address), socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        server.bind((address, port))
        server.settimeout(0.1)
        while not ENDING.told:
            try:
                data, control, _, client = server.recvmsg(2048, 128)
            except TimeoutError:
                continue
            seconds, nanoseconds = struct.unpack("qq", control[0][2][:16])
            arrivals.append((seconds + nanoseconds / 1e9, int.from_bytes(data[:8])))
            server.sendto(data, client)
    for moment, number in arrivals:
        print(f"{moment:.6f} {number}")


def count_answers(client, answered):
    client.settimeout(0.1)
    while not (ENDING.told and answered.quiet > 5):
        try:
            answered.numbers.append(int.from_bytes(client.recv(2048)[:8]))
            answered.quiet = 0
        except TimeoutError:
            answered.quiet += 1
        except ConnectionRefusedError:
            continue


class Answered:
    def __init__(self):
        self.numbers = []
        self.quiet = 0


def send(source, source_port, address, port, rate, options):
    answered = Answered()
    with socket.socket(family(address), socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        if options:
            client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options)
        client.bind((source, source_port))
        client.connect((address, port))
        reader = threading.Thread(target=count_answers, args=(client, answered))
        reader.start()
        begin, sent = time.monotonic(), []
        while not ENDING.told:
            due = int((time.monotonic() - begin) * rate) - len(sent)
            for _ in range(max(0, due)):
                try:
                    client.send(len(sent).to_bytes(8) + bytes(192))
                except ConnectionRefusedError:
                    continue
                sent.append(time.time())
            time.sleep(0.5 / rate)
        reader.join()
    print(f"{len(sent)} sent, {len(answered.numbers)} answered")
    came = set(answered.numbers)
    for number, moment in enumerate(sent):
        if number not in came:
            print(f"{moment:.6f} {number}")


ENDING = Ending()
if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    OPTIONS = NO_OPERATION if sys.argv[7:] == ["options"] else b""
    send(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), OPTIONS)
