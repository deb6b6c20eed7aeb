"""Sends numbered UDP datagrams as fast as it can, or at a rate, and prints how many the kernel took.

    flood.py ADDRESS PORT SIZE COUNT [PER_SECOND]

The numbers of a later run are higher than those of an earlier one.
"""

import json
import socket
import struct
import sys
import time

from packets import family


def main(address, port, size, count, rate=None):
    payload = bytearray(int(size))
    sender = socket.socket(family(address), socket.SOCK_DGRAM)
    sender.connect((address, int(port)))
    sent, start, base = 0, time.monotonic(), time.monotonic_ns() << 8
    for number in range(int(count)):
        struct.pack_into("!2sQ", payload, 0, b"TT", base + number)
        if rate and number % 10 == 0:
            time.sleep(max(0.0, start + number / float(rate) - time.monotonic()))
        try:
            sent += sender.send(payload) == len(payload)
        except OSError as error:
            sys.exit(f"datagram {number}: {error}")
    print(json.dumps({"sent": sent, "seconds": round(time.monotonic() - start, 2)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
