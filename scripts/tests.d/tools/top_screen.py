#!/usr/bin/env python3
"""Runs `tartan top` in a pseudo-terminal of 80 x 24 and looks at what it writes.

    top_screen.py ROOT TARTAN...

ROOT is the agent's. It must show its tabs by keys, say that no agent answers while there is no socket, go on when there is one
again, and, when a key, SIGINT or SIGTERM ends it, give the terminal back: first screen, cursor, mouse, cooked mode.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

# Seconds, of one answer.
PATIENCE = 20
GIVEN_BACK = {"the second screen": b"\x1b[?1049l", "the hidden cursor": b"\x1b[?25h", "the mouse": b"\x1b[?1000l"}
wrong = []


class Screen:
    """A terminal with `tartan top` in it."""

    def __init__(self, root, tartan):
        self.own, other = pty.openpty()
        self.before = termios.tcgetattr(self.own)
        self.program = subprocess.Popen([*tartan, "--root", root, "top"], stdin=other, stdout=other, stderr=other, start_new_session=True)
        os.close(other)
        self.written = b""

    def read(self, seconds):
        if select.select([self.own], [], [], seconds)[0]:
            try:
                self.written += os.read(self.own, 65536)
            except OSError:
                # The program has closed its end.
                time.sleep(0.05)

    def shows(self, text):
        """Waits for a text. Only what changes is written, but all of it for another size."""
        self.written, end, columns = b"", time.monotonic() + PATIENCE, 80
        pattern = re.compile(r"(?:\s|\x1b\[[\d;?]*[A-Za-z])+".join(map(re.escape, text.split())).encode())
        while not pattern.search(self.written):
            if time.monotonic() > end:
                wrong.append(f"{text!r} is not shown; written: {self.written[-600:]!r}")
                return
            columns = 161 - columns
            fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            self.read(0.3)

    def ends(self, how):
        end = time.monotonic() + PATIENCE
        while self.program.poll() is None and time.monotonic() < end:
            self.read(0.1)
        self.read(0.1)
        if self.program.poll() != 0:
            wrong.append(f"{how}: exit code {self.program.poll()}, not 0")
            self.program.kill()
        wrong.extend(f"{how}: {what} stays" for what, code in GIVEN_BACK.items() if code not in self.written)
        if termios.tcgetattr(self.own)[3] != self.before[3]:
            wrong.append(f"{how}: the terminal stays raw")
        os.close(self.own)


def main(agents_root, tartan):
    # The agent would put its own socket back at once: this is another way to it, which can be taken away.
    with tempfile.TemporaryDirectory() as root:
        way = f"{root}/run/tartan/tartan.sock"
        os.makedirs(os.path.dirname(way))
        os.symlink(f"{agents_root}/run/tartan/tartan.sock", way)
        screen = Screen(root, tartan)
        screen.shows("1 path")
        os.write(screen.own, b"4")
        screen.shows("FLOW")
        os.remove(way)
        screen.shows("NO ANSWER")
        os.symlink(f"{agents_root}/run/tartan/tartan.sock", way)
        screen.shows("the agent answers again")
        os.write(screen.own, b"q")
        screen.ends("q")
        for number in (signal.SIGINT, signal.SIGTERM):
            screen = Screen(root, tartan)
            screen.shows("1 path")
            screen.program.send_signal(number)
            screen.ends(number.name)
    print("\n".join(wrong) if wrong else "the screen is drawn, and the terminal given back")
    sys.exit(1 if wrong else 0)


main(sys.argv[1], sys.argv[2:])
