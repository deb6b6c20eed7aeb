"""What the machine's cores did, and how much of it the host of a virtual machine took away (proc(5), /proc/stat).

    cores.py now              prints seconds of work and seconds taken since the start of the machine, of all cores together
    cores.py taken WORK TAKEN succeeds if more than CALM per cent of what the machine wanted was taken since `now` said that
"""

import os
import sys

TICKS = os.sysconf("SC_CLK_TCK")
# Up to so much of what the machine wanted may be taken away, per cent: with a fifth gone floods arrive at a tenth.
CALM = 5


def now():
    """Seconds that all cores together have worked, and that the host gave to others while a core here had work."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _wait, irq, softirq, stolen = (int(word) for word in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS, stolen / TICKS


def taken_since(before):
    """Per cent of what the machine wanted since `before`, what now() returned, that was taken.

    A share of what was wanted and not of the time, or a run that keeps more cores busy would seem disturbed more often.
    """
    work, taken = (after - one for after, one in zip(now(), before))
    return 100 * taken / max(work + taken, 1 / TICKS)


if __name__ == "__main__":
    if sys.argv[1] == "now":
        print(*now())
    else:
        sys.exit(taken_since([float(word) for word in sys.argv[2:4]]) <= CALM)
