#!/usr/bin/env python3
"""The labs of scripts/test (scripts/tests.d/labs), and which laws (scripts/tests.d/laws) hold in each.

    labs.py names [--full]         the labs of the default run, or all, a line each
    labs.py options LAB            the options of `scripts/lab up` for one, a word a line
    labs.py probes LAB             on or off: whether its agents probe their peers
    labs.py laws LAB [--full]      the laws that run in it, in their order: first those that leave the lab as it was
    labs.py check                  fails unless the labs cover the pairs that the table names, and each law has a lab

A law's head says where it holds: "# labs: CONDITION..." (without it: in every lab), "# full: CONDITION..." where it
runs with --full alone; of several lines one must hold. A CONDITION is COLUMN=VALUE[|VALUE...] or
COLUMN!=VALUE[|VALUE...]. One with a line "# first: REASON" runs before those that have none, one with "# last: REASON"
behind them.
"""
import itertools
import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
OPTIONS = {"format": "--backend", "inside": "--inside", "outside": "--outside", "underlay": "--underlay",
           "workers": "--workers", "kernel-path": "--kernel-path", "registry": "--registry"}


def table():
    """The labs, each a dict of its columns; the pairs of columns to cover; and the pairs of values that need not be."""
    labs, pairs, without, columns = [], [], [], None
    for line in (HOME / "labs").read_text(encoding="utf-8").splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "pairs":
            pairs.append(tuple(words[1:3]))
        elif words[0] == "without":
            without.append([condition(word) for word in words[1:]])
        elif columns is None:
            columns = words
        else:
            if len(words) != len(columns):
                sys.exit(f"scripts/tests.d/labs: {len(words)} values for {len(columns)} columns: {line}")
            labs.append(dict(zip(columns, words)))
    return labs, pairs, without


def condition(word):
    """COLUMN=VALUE|VALUE or COLUMN!=VALUE, as a column, whether it must be one of them, and the values."""
    found = re.fullmatch(r"([a-z-]+)(!?)=(.+)", word)
    if not found:
        sys.exit(f"not a condition: {word}")
    return found[1], not found[2], found[3].split("|")


def holds(conditions, lab):
    for column, wanted, values in conditions:
        if column not in lab:
            sys.exit(f"scripts/tests.d/labs has no column {column}")
        if (lab[column] in values) != wanted:
            return False
    return True


def runs_in(law, lab, full):
    """Whether a law runs in a lab."""
    heads = re.findall(r"^# (labs|full):(.*)$", law.read_text(encoding="utf-8"), re.M)
    kinds = {"labs", "full"} if full else {"labs"}
    if not heads:
        return True
    return any(kind in kinds and holds([condition(word) for word in words.split()], lab) for kind, words in heads)


def laws(lab, full):
    chosen = [law for law in sorted((HOME / "laws").glob("*.sh")) if runs_in(law, lab, full)]
    return sorted(chosen, key=place)


def place(law):
    """0 for one that runs first, 2 for one that runs last."""
    head = law.read_text(encoding="utf-8")
    return 0 if "\n# first: " in head else 2 if "\n# last: " in head else 1


def options(lab):
    words = ["--nodes", "3", "--pods", "2"]
    for column, option in OPTIONS.items():
        words += [option, lab[column]]
    if lab["device"] == "plain":
        words += ["--device", "plain"]
    else:
        words += ["--device-type", lab["device"]]
    if lab["third"] != "tartan":
        words += ["--peer", lab["third"]]
    return words


def check():
    """What is wrong with the table or a law, a line each."""
    labs, pairs, without = table()
    daily = [lab for lab in labs if lab["run"] == "default"]
    for one, other in pairs:
        for a, b in itertools.product(sorted({lab[one] for lab in labs}), sorted({lab[other] for lab in labs})):
            pair = {one: a, other: b}
            impossible = any(all(column in pair for column, _, _ in row) and holds(row, pair) for row in without)
            if not impossible and not any(lab[one] == a and lab[other] == b for lab in daily):
                yield f"no lab of the default run has {one}={a} with {other}={b}"
    for law in sorted((HOME / "laws").glob("*.sh")):
        for line in re.findall(r"^# (?:labs|full):.*$", law.read_text(encoding="utf-8"), re.M):
            conditions = [condition(word) for word in line.split()[2:]]
            if not any(holds(conditions, lab) for lab in (daily if line.startswith("# labs:") else labs)):
                yield f"{law.name}: no lab is one of '{line}'"


def main():
    words = [word for word in sys.argv[1:] if word != "--full"]
    full = "--full" in sys.argv
    labs, pairs, _ = table()
    by_name = {lab["lab"]: lab for lab in labs}
    if words == ["names"]:
        print("\n".join(name for name, lab in by_name.items() if full or lab["run"] == "default"))
    elif words == ["check"]:
        wrong = list(check())
        print("\n".join(wrong) or f"{len(labs)} labs; those of the default run cover {len(pairs)} pairs of columns")
        sys.exit(1 if wrong else 0)
    elif len(words) == 2 and words[0] in ("options", "laws", "probes") and words[1] in by_name:
        lab = by_name[words[1]]
        answers = {"options": options(lab), "laws": [law.stem for law in laws(lab, full)], "probes": [lab["probes"]]}
        print("\n".join(answers[words[0]]))
    else:
        sys.exit(__doc__)


main()
