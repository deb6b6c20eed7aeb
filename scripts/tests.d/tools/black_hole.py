"""What a change of the path MTU does to one TCP connection, and when who knows of it. Times are milliseconds since boot.

    black_hole.py receive ADDRESS PORT FILE
        as bulk.py, and writes every pause of 20 ms or more between two receives to FILE: when it began, how long it was, or
        how long it is by now
    black_hole.py send ADDRESS PORT BYTES_PER_SECOND FILE
        until SIGTERM; writes to FILE whenever it changes: when, retransmission timeout in force, milliseconds, how often
        it was doubled, largest segment, bytes (tcp_info of the connection, looked at every 5 ms)
    black_hole.py watch PEER
        until SIGTERM, on a node: whenever the measured MTU of the paths to PEER changes: when, and the least of them
    black_hole.py now
        the time
    black_hole.py told ADDRESS BYTES
        sends UDP datagrams with DF that make IP packets of BYTES until the kernel refuses one; prints the error and what
        IP_MTU or IPV6_MTU says then, or `none` after 3 s
"""

import errno
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import bulk
from ending import Ending
from packets import family

PAUSE = 20
# After which a pause that goes on is written.
STILL = 0.2
EVERY = 0.005
# Each look is a new process on a node that is busy.
WATCH_EVERY = 0.03
PATIENCE = 3.0
PORT = 5009
# linux/in.h, linux/in6.h
IP_MTU_DISCOVER, IP_MTU, IPV6_MTU_DISCOVER, IPV6_MTU, PMTUDISC_DO = 10, 14, 23, 24, 2


def now():
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def receive(address, port, path):
    with socket.create_server((address, port), family=family(address)) as listener:
        listener.settimeout(bulk.PATIENCE)
        connection, _ = listener.accept()
    total, digest, view = 0, hashlib.sha256(), memoryview(bytearray(bulk.CHUNK))
    with connection, open(path, "w", buffering=1) as pauses:
        connection.settimeout(STILL)
        latest = now()
        while True:
            try:
                count = connection.recv_into(view)
            except TimeoutError:
                print(latest, now() - latest, file=pauses)
                if now() - latest > bulk.PATIENCE * 1000:
                    raise
                continue
            if count == 0:
                break
            at = now()
            if at - latest >= PAUSE:
                print(latest, at - latest, file=pauses)
            latest = at
            digest.update(view[:count])
            total += count
    print(total, digest.hexdigest())


def follow(connection, path, ends):
    """struct tcp_info: tcpi_backoff is its byte 5, tcpi_rto and tcpi_snd_mss are at 8 and 16."""
    before = None
    with open(path, "w", buffering=1) as file:
        while not ends.wait(EVERY):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
            (timeout,), (segment,) = struct.unpack_from("=I", info, 8), struct.unpack_from("=I", info, 16)
            found = (timeout // 1000, info[5] if info[5] < 255 else 0, segment)
            if found != before:
                print(now(), *found, file=file)
            before = found


def send(address, port, rate, path):
    ending = Ending()
    ends, digest, sent = threading.Event(), hashlib.sha256(), 0
    block = bytearray(os.urandom(rate // 50))
    with bulk.connect(address, port) as connection:
        connection.settimeout(bulk.PATIENCE)
        connection.setsockopt(socket.SOL_SOCKET, bulk.SO_MAX_PACING_RATE, rate)
        follower = threading.Thread(target=follow, args=(connection, path, ends))
        follower.start()
        while not ending.told:
            block[:8] = sent.to_bytes(8, "big")
            connection.sendall(block)
            digest.update(block)
            sent += len(block)
        ends.set()
        follower.join()
    print(sent, digest.hexdigest())


def watch(name):
    before = None
    while True:
        answer = subprocess.run(["tartan", "peers", "-o", "json"], stdout=subprocess.PIPE, check=False).stdout
        peers = json.loads(answer)["peers"]
        measured = [path["mtu_measured"] or 0 for peer in peers if peer["name"] == name for path in peer["paths"]]
        found = min(measured, default=0)
        if found != before:
            print(now(), found, flush=True)
        before = found
        time.sleep(WATCH_EVERY)


def told(address, size):
    client = socket.socket(family(address), socket.SOCK_DGRAM)
    if client.family == socket.AF_INET:
        level, discover, mtu, headers = socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_MTU, 28
    else:
        level, discover, mtu, headers = socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_MTU, 48
    client.setsockopt(level, discover, PMTUDISC_DO)
    client.connect((address, PORT))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            client.send(bytes(size - headers))
        except ConnectionRefusedError:
            # It arrived, and no process has the port.
            pass
        except OSError as error:
            print(errno.errorcode[error.errno], client.getsockopt(level, mtu))
            return
        time.sleep(0.02)
    print("none")


if __name__ == "__main__":
    command, order = sys.argv[1], sys.argv[2:]
    if command == "receive":
        receive(order[0], int(order[1]), order[2])
    elif command == "send":
        send(order[0], int(order[1]), int(order[2]), order[3])
    elif command == "watch":
        watch(*order)
    elif command == "now":
        print(now())
    else:
        told(order[0], int(order[1]))
