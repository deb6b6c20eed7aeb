#!/usr/bin/env python3
"""Compares what two API servers answered, field by field.

    apiserver_compare.py EXPECTED FOUND

Each file has lines of a question's name, a tab, and the answer as JSON. Prints a line for each field that differs,
"QUESTION: FIELD: expected A, found B"; ends with 1 if there is one, or if a question is missing.
"""

import json
import sys

NOTHING = object()


def answers(path):
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, _, answer = line.rstrip("\n").partition("\t")
            if name in found:
                sys.exit(f"{path}: {name!r} was asked twice")
            found[name] = json.loads(answer)
    return found


def differences(expected, found, path):
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key, NOTHING), found.get(key, NOTHING), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found)):
            yield from differences(one, other, f"{path}[{number}]")
    elif expected != found or isinstance(expected, bool) != isinstance(found, bool):
        yield f"{path or 'the answer'}: expected {text(expected)}, found {text(found)}"


def text(value):
    return "nothing" if value is NOTHING else json.dumps(value)


def main():
    expected, found = map(answers, sys.argv[1:])
    wrong = []
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in expected or name not in found:
            wrong.append(f"{name}: asked of one of the two only")
            continue
        wrong.extend(f"{name}: {one}" for one in differences(expected[name], found[name], ""))
    print("\n".join(wrong) if wrong else f"{len(expected)} answers are the same")
    sys.exit(1 if wrong or not expected else 0)


main()
