"""Has a UDP port of every IPv4 address from the moment that it is free.

    take_port.py PORT     prints 'taken' once it has it, and keeps it until SIGTERM
"""

import socket
import sys
import time

from ending import Ending

STEP = 0.0002

ENDING = Ending()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
    taken = False
    while not ENDING.told:
        if taken:
            time.sleep(0.1)
            continue
        try:
            taker.bind(("0.0.0.0", int(sys.argv[1])))
            taken = True
            print("taken", flush=True)
        except OSError:
            time.sleep(STEP)
