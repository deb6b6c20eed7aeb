"""Looks at `tartan top` in a terminal, tmux's, of 80 x 24 and of 200 x 60: every tab, and the help.

    top_looks.py STATE DIRECTORY SERVER COMMAND...

STATE is what the node is in: empty, busy, peers (201 of them) or problem. COMMAND starts `tartan top`. SERVER names a tmux server of this
program alone. The screens are written to DIRECTORY. Of each it asks: are the parts there, is every word whole, do numbers stand
below the ends of their headings.
"""

import re
import subprocess
import sys
import time

STATE, DIRECTORY, SERVER, COMMAND = *sys.argv[1:4], sys.argv[4:]
KEYS = "q quit  Tab or 1-6 tab  s sort  r reverse  / filter  p pause  ? help"
TABS = {"path": "1", "peers": "2", "pods": "3", "flows": "4", "workers": "5", "drops": "6", "help": "?"}
WORDS = {"NODE", "FORMAT", "ADDRESS", "POD", "INTERFACE", "FLOW", "PROTO", "WAY", "PEER", "WORKER", "REASON", "WHERE", "MEANING"}
# What must be on a screen; `\n` of a sentence that takes several lines is a blank.
SHOWN = {
    ("empty", "path"): ["no problem", "0/s sent", "sent to peers: 0/s"],
    ("empty", "flows"): ["no flow between pods and peers in user space; the kernel path's are counted by peer alone"],
    ("empty", "drops"): ["nothing was dropped"],
    ("busy", "path"): ["no problem", "/s sent", "█"],
    ("busy", "flows"): ["10.244.1.2 > 10.244.2.2", "icmp"],
    ("busy", "drops"): ["NoRoute", "outbound", "no node owns the destination; the sender gets ICMP net-unreachable"],
    ("peers", "path"): ["2 peers (201)"],
    ("peers", "peers"): ["node2", "listed1", "listed15"],
    ("problem", "path"): ["PROBLEM: flannel.1, a VXLAN device that flannel left, holds 10.244.1.0 inside the cluster network: with its "
                          "routes it takes packets past the overlay 1 path"],
    ("problem", "drops"): ["PROBLEM: flannel.1"],
}
wrong = []


def tmux(*words):
    done = subprocess.run(["tmux", "-u", "-L", SERVER, "-f", "/dev/null", *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def screen():
    return tmux("capture-pane", "-p", "-t", "top").split("\n")[:-1]


def one_text(lines):
    return " ".join(" ".join(lines).split())


def cell_of(heading):
    """A heading without the mark of the sorted column."""
    return heading.rstrip("▼▲")


def flaws(tab, lines, width, height):
    """What is wrong with a screen that any user would see."""
    if len(lines) != height or any(len(line) > width for line in lines):
        yield "it does not fill the screen"
    if not lines[0].startswith("tartan top  node1  vxlan") or not re.search(r"every 1 s$", lines[0]):
        yield f"its title is {lines[0]!r}"
    if lines[-1].rstrip() != KEYS:
        yield f"its last line is {lines[-1]!r}"
    tabs = next((number for number, line in enumerate(lines) if line.startswith(" 1 path  2 peers (")), None)
    if tabs is None:
        yield "it has no tabs"
        return
    if tab != "help" and any("…" in line for line in lines):
        yield "words are cut: %s" % next(line for line in lines if "…" in line)
    if tab == "help":
        ends = {len(line[:line.index(words)]) for line in lines for words in ("another tab", "sort by the next", "reverse the order") if words in line}
        keys = {len(line[:line.index(words)]) for line in lines for words in ("Tab, arrows", "s, S  ", "q, Esc") if words in line}
        if len(ends) != 1 or len(keys) != 1:
            yield "the keys are not below each other"
    elif tab != "path":
        yield from misplaced(lines[tabs + 1:-1])


def misplaced(lines):
    """Cells of numbers that do not end where their heading does, of words that do not begin there."""
    if not lines[0].strip():
        return
    headings = [(found.group(), found.start(), found.end()) for found in re.finditer(r"\S+(?: \S+)*", lines[0].rstrip())]
    for line in lines[1:]:
        # What goes on from the line above has no first cell.
        if not line.strip() or line[0] == " ":
            continue
        for heading, start, end in headings:
            at = start if cell_of(heading) in WORDS else end - 1
            before = at - 1 if cell_of(heading) in WORDS else at + 1
            if line[at:at + 1].strip() == "" or before >= 0 and line[before:before + 1].strip() != "":
                yield f"below {heading} stands {line!r}"
                return


def look(width, height):
    command = subprocess.list2cmdline(COMMAND)
    tmux("new-session", "-d", "-x", str(width), "-y", str(height), "-s", "top", command)
    # Rates are there from the second sample on.
    time.sleep(4)
    for tab, key in TABS.items():
        tmux("send-keys", "-t", "top", key)
        end = time.monotonic() + 10
        expected = SHOWN.get((STATE, tab), [])
        while True:
            time.sleep(0.3)
            lines = screen()
            missing = [part for part in expected if part not in one_text(lines)]
            found = [f"{part!r} is not shown" for part in missing] + list(flaws(tab, lines, width, height))
            if not found or time.monotonic() > end:
                break
        with open(f"{DIRECTORY}/screen-{STATE}-{width}x{height}.txt", "a", encoding="utf-8") as out:
            out.write(f"--- {tab}\n" + "\n".join(lines) + "\n")
        wrong.extend(f"{STATE}, {width} x {height}, {tab}: {flaw}" for flaw in found)
        if found:
            print("\n".join(lines))
    # One key closes the help, the other ends it.
    tmux("send-keys", "-t", "top", "x", "q")
    end = time.monotonic() + 5
    while subprocess.run(["tmux", "-L", SERVER, "has-session", "-t", "top"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        if time.monotonic() > end:
            wrong.append(f"{STATE}, {width} x {height}: q does not end it")
            break
        time.sleep(0.1)


try:
    look(80, 24)
    look(200, 60)
finally:
    subprocess.run(["tmux", "-L", SERVER, "kill-server"], stderr=subprocess.DEVNULL, check=False)
print("\n".join("FAILED: " + flaw for flaw in wrong) if wrong else f"{STATE}: the screens of 80 x 24 and 200 x 60 are whole")
sys.exit(1 if wrong else 0)
