"""Sets of addresses of the kernel, by netlink alone: Debian's ipset is not needed for it.

    sets.py list             prints the names, a line each; exit code 1 on a kernel without them
    sets.py create NAME...   makes them, of hash:ip with IPv4
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


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


def ask(kind, flags, *words):
    """The attributes of each message of the answer; ends with what the kernel refuses."""
    body = struct.pack("=BBH", socket.AF_INET, 0, 0) + attribute(PROTOCOL, b"\6") + b"".join(words)
    line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    line.settimeout(5)
    line.send(struct.pack("=IHHII", len(body) + 16, SUBSYSTEM << 8 | kind, flags | REQUEST, 1, 0) + body)
    while True:
        data = line.recv(1 << 16)
        while len(data) >= 16:
            length, what = struct.unpack_from("=IH", data)
            part, data = data[16:length], data[(length + 3) & ~3 :]
            if what in (ERROR, DONE):
                code = struct.unpack_from("=i", part)[0] if len(part) >= 4 else 0
                # ENOENT: a list of none.
                sys.exit(f"sets.py: the kernel refuses: {code}") if code not in (0, -2) else None
                return
            yield dict(attributes(part[4:]))


if sys.argv[1] == "list":
    found = [each[SETNAME].rstrip(b"\0").decode() for each in ask(LIST, DUMP, attribute(FLAGS, struct.pack(">I", 2)))]
    print("".join(f"{name}\n" for name in sorted(found)), end="")
for name in sys.argv[2:]:
    kind = [attribute(SETNAME, name.encode() + b"\0"), attribute(TYPENAME, b"hash:ip\0"), attribute(REVISION, b"\0")]
    list(ask(CREATE, ACK | EXCL_CREATE, *kind, attribute(FAMILY, bytes([socket.AF_INET])), attribute(DATA | NESTED, b"")))
