#!/usr/bin/env python3
"""Runs `tartan top` in a pseudo-terminal of 80 x 24 and looks at what it writes.

    top_screen.py ROOT TARTAN...

ROOT is the agent's. It must show its tabs by keys, say that no agent answers while there is no socket, go on when there is one
again, and leave the terminal's second screen, show the cursor, and make the terminal cooked again when it ends: by a key, SIGINT and SIGTERM.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

SOCKET, TARTAN = f"{sys.argv[1]}/run/tartan/tartan.sock", sys.argv[2:]
# The agent would put its own socket back at once: this is another way to it, which can be taken away.
ROOT = tempfile.mkdtemp()
WAY = f"{ROOT}/run/tartan/tartan.sock"
os.makedirs(os.path.dirname(WAY))
os.symlink(SOCKET, WAY)
wrong = []


class Screen:
    """A terminal with `tartan top` in it."""

    def __init__(self):
        self.own, other = pty.openpty()
        fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.own)
        self.program = subprocess.Popen([*TARTAN, "--root", ROOT, "top"], stdin=other, stdout=other, stderr=other, start_new_session=True)
        os.close(other)
        self.written = b""

    def read(self, seconds):
        if select.select([self.own], [], [], seconds)[0]:
            try:
                self.written += os.read(self.own, 65536)
            except OSError:
                # The program has closed its end.
                time.sleep(0.05)

    def shows(self, text, seconds=5):
        """Whether the text is on the screen. Only what changes is written, but all of it for another size."""
        self.written, end = b"", time.monotonic() + seconds
        pattern = re.compile(r"(?:\s|\x1b\[[\d;?]*[A-Za-z])+".join(map(re.escape, text.split())).encode())
        columns = 80
        while time.monotonic() < end:
            columns = 161 - columns
            fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            self.read(0.3)
            if pattern.search(self.written):
                return True
        wrong.append(f"{text!r} is not shown; written: {self.written[-600:]!r}")
        return False

    def press(self, keys):
        os.write(self.own, keys.encode())

    def ends(self, how):
        end = time.monotonic() + 5
        while self.program.poll() is None and time.monotonic() < end:
            self.read(0.1)
        self.read(0.1)
        if self.program.poll() != 0:
            wrong.append(f"{how}: exit code {self.program.poll()}, not 0")
            self.program.kill()
        for what, code in (("the second screen", b"\x1b[?1049l"), ("the hidden cursor", b"\x1b[?25h"), ("the mouse", b"\x1b[?1000l")):
            if code not in self.written:
                wrong.append(f"{how}: {what} stays; written: {self.written[-200:]!r}")
        if termios.tcgetattr(self.own)[3] != self.before[3]:
            wrong.append(f"{how}: the terminal stays raw")
        os.close(self.own)


screen = Screen()
screen.shows("1 path")
screen.press("4")
screen.shows("FLOW")
os.remove(WAY)
screen.shows("NO ANSWER")
os.symlink(SOCKET, WAY)
screen.shows("the agent answers again", 10)
screen.press("q")
screen.ends("q")
for number in (signal.SIGINT, signal.SIGTERM):
    screen = Screen()
    screen.shows("1 path")
    screen.program.send_signal(number)
    screen.ends(number.name)
shutil.rmtree(ROOT)
print("\n".join(wrong) if wrong else "the screen is drawn, and the terminal given back")
sys.exit(1 if wrong else 0)
