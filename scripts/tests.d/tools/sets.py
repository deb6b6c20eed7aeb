"""Sets of addresses of the kernel, by netlink alone: Debian's ipset is not needed for it.

    sets.py list             prints the names, a line each; exit code 1 on a kernel without them
    sets.py create NAME      makes one of hash:ip with IPv4
"""

import socket
import struct
import sys

NETLINK_NETFILTER, SUBSYSTEM = 12, 6
CREATE, LIST = 2, 7
PROTOCOL, SETNAME, TYPENAME, REVISION, FAMILY, FLAGS, DATA = 1, 2, 3, 4, 5, 6, 7
REQUEST, ACK, EXCL_CREATE, DUMP = 1, 4, 0x600, 0x300
NESTED = 0x8000
ERROR, DONE = 2, 3


def attribute(kind, value):
    return struct.pack("=HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)


def ask(kind, flags, attributes):
    """The messages of the answer, without their headers; raises what the kernel refuses."""
    body = struct.pack("=BBH", socket.AF_INET, 0, 0) + attribute(PROTOCOL, b"\6") + attributes
    line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    line.settimeout(5)
    line.send(struct.pack("=IHHII", len(body) + 16, SUBSYSTEM << 8 | kind, flags | REQUEST, 1, 0) + body)
    answers = []
    while True:
        data = line.recv(1 << 16)
        while len(data) >= 16:
            length, what = struct.unpack_from("=IH", data)
            part, data = data[16:length], data[(length + 3) & ~3 :]
            if what in (ERROR, DONE):
                code = struct.unpack_from("=i", part)[0] if len(part) >= 4 else 0
                if code:
                    raise OSError(-code, "the kernel refuses")
                return answers
            answers.append(part[4:])


def name(attributes):
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind & 0x3FFF == SETNAME:
            return attributes[4:length].rstrip(b"\0").decode()
        attributes = attributes[(length + 3) & ~3 :]
    return None


def main():
    if sys.argv[1] == "list":
        try:
            found = ask(LIST, DUMP, attribute(FLAGS, struct.pack(">I", 2)))
        except OSError as error:
            if error.errno != 2:
                sys.exit(f"sets.py: {error}")
            found = []
        for each in sorted(filter(None, map(name, found))):
            print(each)
        return
    words = attribute(SETNAME, sys.argv[2].encode() + b"\0") + attribute(TYPENAME, b"hash:ip\0")
    words += attribute(REVISION, b"\0") + attribute(FAMILY, bytes([socket.AF_INET])) + attribute(DATA | NESTED, b"")
    ask(CREATE, ACK | EXCL_CREATE, words)


main()
