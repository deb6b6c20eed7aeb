"""The longest hole in a row of answers around each of some moments.

    holes.py PINGS MOMENTS SECONDS [BEGUN]

PINGS is what `ping -D` printed. MOMENTS has a moment a line, in seconds since 1970. The hole of a moment is the longest time
between two answers in a row that lies, with any part of it, within SECONDS after the moment. Prints one JSON object, in
milliseconds: {"count": n, "p50": ms, "p99": ms, "most": ms, "at": the number of the moment of the longest hole, from 1,
"lost": how many pings before the last one that was answered were not, "lost_after": by how much each of those was sent after the
latest moment, to some milliseconds}.

BEGUN, if given, has as many moments, of which each is that of a start: {"started": {the same of the time from each start to
the first answer that came after it}} is printed too.
"""

import bisect
import json
import re
import sys

ANSWER = re.compile(r"^\[(\d+\.\d+)\] \d+ bytes from .* icmp_seq=(\d+) .* time=(\d+(?:\.\d+)?) ms")
# Sequence numbers have 16 bits.
ROUND = 1 << 16


def answers(path):
    """When each answer came, when its ping was sent, and its number, which grows on where that of the packet begins anew."""
    found, number = [], 0
    with open(path, encoding="ascii", errors="replace") as lines:
        for match in filter(None, map(ANSWER.match, lines)):
            number += (int(match[2]) - number + ROUND // 2) % ROUND - ROUND // 2
            came = float(match[1])
            found.append((came, came - float(match[3]) / 1000, number))
    return found


def lost(found, order):
    """Milliseconds between the moment before it and each ping that was not answered, as the one before it was sent."""
    sent = {number: when for _, when, number in found}
    missing = sorted(set(range(1, max(sent, default=0))) - sent.keys())
    after = []
    for number in missing:
        when = sent.setdefault(number, sent.get(number - 1, 0.0))
        place = bisect.bisect_right(order, when)
        after.append(round((when - order[place - 1]) * 1000) if place else None)
    return after


def moments(path):
    with open(path, encoding="ascii") as lines:
        return [float(line) for line in lines]


def hole(times, moment, seconds):
    """Seconds. A row that ends too early says nothing of what came after it."""
    first = bisect.bisect_right(times, moment) - 1
    last = bisect.bisect_left(times, moment + seconds)
    if first < 0 or last >= len(times):
        sys.exit(f"no answer before or after {moment:.3f} and the {seconds} s after it")
    row = times[first : last + 1]
    return max(after - before for before, after in zip(row, row[1:]))


def until_answered(times, moment):
    first = bisect.bisect_right(times, moment)
    if first == len(times):
        sys.exit(f"no answer after {moment:.3f}")
    return times[first] - moment


def summary(figures):
    """The p99 of fewer than a hundred is their largest."""
    order = sorted(figures)
    rank = {of: order[max(0, -(-len(order) * of // 100) - 1)] for of in (50, 99)}
    return {
        "count": len(order),
        "p50": round(rank[50] * 1000, 1),
        "p99": round(rank[99] * 1000, 1),
        "most": round(order[-1] * 1000, 1),
        "at": figures.index(order[-1]) + 1,
    }


def main():
    found, order = answers(sys.argv[1]), moments(sys.argv[2])
    times = sorted(came for came, _, _ in found)
    report = summary([hole(times, moment, float(sys.argv[3])) for moment in order])
    report["lost_after"] = lost(found, order)
    report["lost"] = len(report["lost_after"])
    if len(sys.argv) > 4:
        report["started"] = summary([until_answered(times, moment) for moment in moments(sys.argv[4])])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
