"""The longest hole in a row of answers behind each of some moments.

    holes.py ANSWERS MOMENTS SECONDS [STARTS]

Each file has a moment a line, in seconds since 1970: when an answer came, and so on. The hole of a moment is the
longest time between two answers in a row that lies, with any part of it, within SECONDS after the moment. Prints a
JSON object, in milliseconds: {"count": n, "p50": ms, "p99": ms, "most": ms, "at": the number of the moment of the
longest, from 1}; with STARTS "started" has the same of the time from each start to the next answer.
"""

import bisect
import json
import sys


def moments(path):
    with open(path, encoding="ascii") as lines:
        return [float(line) for line in lines]


def hole(times, moment, seconds):
    """A row that ends too early says nothing of what came after it."""
    first = bisect.bisect_right(times, moment) - 1
    last = bisect.bisect_left(times, moment + seconds)
    if first < 0 or last >= len(times):
        sys.exit(f"no answer came before or after {moment:.3f} and the {seconds} s after it")
    row = times[first : last + 1]
    return max(after - before for before, after in zip(row, row[1:]))


def summary(figures):
    """The p99 of fewer than a hundred is their largest."""
    order = sorted(figures)
    found = {"count": len(order)}
    for name, part in (("p50", 50), ("p99", 99), ("most", 100)):
        found[name] = round(order[-(-len(order) * part // 100) - 1] * 1000, 1)
    return {**found, "at": figures.index(order[-1]) + 1}


def main():
    times = sorted(moments(sys.argv[1]))
    report = summary([hole(times, moment, float(sys.argv[3])) for moment in moments(sys.argv[2])])
    if len(sys.argv) > 4:
        starts = moments(sys.argv[4])
        report["started"] = summary([times[bisect.bisect_right(times, start)] - start for start in starts])
    print(json.dumps(report))


main()
