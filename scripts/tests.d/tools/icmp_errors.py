"""What a sender of UDP datagrams is told: the ICMP errors in its socket's error queue, which ip(7) calls IP_RECVERR.

    icmp_errors.py send ADDRESS SIZE [--from ADDRESS] [--cut] [--count N] [--wait SECONDS]
        sends datagrams of SIZE bytes, waits for as many errors or SECONDS (2), then prints how long it took until the
        last of them came, a line for each that the kernel refused, and a line for each error: errno, origin,
        type/code, MTU, from whom, about what, how much of the payload it quotes. With DF: the kernel judges no size
        by a path MTU that it learned, anything up to the device's goes out. With --cut without DF, in fragments
        where larger: than the device's MTU, or, over IPv6, where none but the sender may cut, than what it learned
        of the path.
    icmp_errors.py receive ADDRESS
        until SIGTERM, then prints for each datagram that came its size and whether its content is right
    icmp_errors.py fragments FILE
        the packets of a capture on a tunnel device: length@offset, + where more fragments follow
"""

import argparse
import errno
import select
import socket
import struct
import sys
import time

from ending import Ending
from packets import family, ip_packet, read_pcap
from sizes import request

PORT = 5004
# More than the errors that a flood draws at once.
ATTEMPTS = 100
# linux/in.h, linux/in6.h, linux/errqueue.h
IP_MTU_DISCOVER, IP_RECVERR, IPV6_MTU_DISCOVER, IPV6_RECVERR = 10, 11, 23, 25
PMTUDISC_DONT, PMTUDISC_PROBE, PMTUDISC_OMIT = 0, 3, 5
ORIGINS = {1: "local", 2: "icmp", 3: "icmp6"}


def sender(address, source, cut):
    client = socket.socket(family(address), socket.SOCK_DGRAM)
    if client.family == socket.AF_INET:
        client.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_OMIT if cut else PMTUDISC_PROBE)
        client.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    else:
        client.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DONT if cut else PMTUDISC_PROBE)
        client.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
    if source:
        client.bind((source, 0))
    return client


def send(client, address, size):
    """The kernel's last word against the datagram, if any. A send that returns the error of an earlier datagram sends
    nothing, and the next one does."""
    for _ in range(ATTEMPTS):
        try:
            client.sendto(request(size), (address, PORT))
            return []
        except OSError as error:
            refused = f"refused {errno.errorcode[error.errno]}"
    return [refused]


def errors(client, size):
    """All errors that are queued. The kernel finds a socket by the quote, so its addresses and ports are right."""
    while True:
        try:
            quote, control, _, to = client.recvmsg(65536, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        for level, kind, data in control:
            if (level, kind) in ((socket.IPPROTO_IP, IP_RECVERR), (socket.IPPROTO_IPV6, IPV6_RECVERR)):
                right = "right" if quote == request(size)[: len(quote)] else "wrong"
                yield f"{describe(data)} about {to[0]}, quotes {len(quote)} {right}"


def describe(data):
    """struct sock_extended_err, and behind it the address of who says so."""
    number, origin, kind, code, _, mtu, _ = struct.unpack_from("=IBBBBII", data)
    (by,) = struct.unpack_from("=H", data, 16)
    if by == socket.AF_INET:
        by = socket.inet_ntop(by, data[20:24])
    elif by == socket.AF_INET6:
        by = socket.inet_ntop(by, data[24:40])
    return f"{errno.errorcode[number]} {ORIGINS[origin]} {kind}/{code} mtu {mtu} from {by}"


def ask(order):
    client = sender(order.address, order.source, order.cut)
    refused, told = [], []
    start = time.monotonic()
    for _ in range(order.count):
        refused += send(client, order.address, order.size)
    last = time.monotonic()
    poll = select.poll()
    poll.register(client, 0)
    end = last + order.wait
    while (left := end - time.monotonic()) > 0 and len(told) < order.count:
        poll.poll(1000 * left)
        if more := list(errors(client, order.size)):
            told += more
            last = time.monotonic()
    print(f"{1000 * (last - start):.0f} ms", *refused, *told, sep="\n")


def receive(order):
    ending = Ending()
    server = socket.socket(family(order.address), socket.SOCK_DGRAM)
    server.bind((order.address, PORT))
    server.settimeout(0.3)
    while True:
        try:
            data = server.recv(65536)
            print(len(data), "right" if data == request(len(data)) else "wrong")
        except TimeoutError:
            # What had arrived is read by then.
            if ending.told:
                break


def fragments(order):
    link, frames = read_pcap(order.file)
    for frame in frames:
        # A TAP's frames have an Ethernet header (LINKTYPE_ETHERNET).
        frame = frame[14:] if link == 1 else frame
        packet = ip_packet(frame)
        print(f"{len(frame) - packet.rest}@{packet.offset}{'+' if packet.more else ''}")


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("send")
    verb.add_argument("address")
    verb.add_argument("size", type=int)
    verb.add_argument("--from", dest="source")
    verb.add_argument("--cut", action="store_true")
    verb.add_argument("--count", type=int, default=1)
    verb.add_argument("--wait", type=float, default=2.0)
    verb.set_defaults(run=ask)
    verb = verbs.add_parser("receive")
    verb.add_argument("address")
    verb.set_defaults(run=receive)
    verb = verbs.add_parser("fragments")
    verb.add_argument("file")
    verb.set_defaults(run=fragments)
    order = parser.parse_args()
    order.run(order)


if __name__ == "__main__":
    sys.exit(main())
