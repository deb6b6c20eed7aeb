"""Changes the configuration of an agent again and again, every second time so that it cannot be used, and looks in the
agent's log whether each change was taken, or refused with its key and the reason.

    reloads.py ROOT COUNT      ROOT: the agent's directory, with `pid`, `log` and `net-conf.json`

A change is asked for by SIGHUP to the keeper, and the next waits for the answer to it. Some good changes come without
a signal: after a text that was refused, the agent reads the file by itself. Prints a JSON object; exit code 1 where
an answer was not as it should be.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

# What a good text is answered by, beside the keys that have changed.
NOTHING = r"nothing has changed that the service goes by"
STARTED = r"forwarding node="
# Seconds, of a start on a busy machine.
PATIENCE = 30

GOOD = {
    "shrink-grace": ("300", "400"),
    "reclaim-after": ("60", "90"),
    "strict-pods": ("false", "true"),
    "spin": ('"off"', '"auto"'),
    "metrics-limit": ("2000", "3000"),
    "gather": ("true", "false"),
}
# The text of tartan.toml as bytes, or none for a directory in its place, and what the refusal must name.
BROKEN_SETTINGS = [
    (b"shrink-grase = 300\n", "shrink-grase"),
    (b"workers = 0\n", "workers"),
    (b"workers = 70000\n", "workers"),
    (b"metrics-limit = -1\n", "metrics-limit"),
    (b'strict-pods = "perhaps"\n', "strict-pods"),
    (b'spin = "often"\n', "spin"),
    (b'shrink-grace = "soon"\n', "shrink-grace"),
    (b'iface = "eth\n', "line 1"),
    (b"shrink-grace = 300\nmasquer", "line 2"),
    (b"# \xff\xfe\nshrink-grace = 300\n", "UTF-8"),
    (b"shrink-grace = 300\nshrink-grace = 400\n", "shrink-grace"),
    (b'device-name = "a name that no interface can have"\n', "device-name"),
    (None, "not a regular file"),
]
# The same of the net-conf: what replaces a key of it or of its Backend.
BROKEN_NET_CONFS = [
    ({"Network": "10.244.0.0/33"}, "Network"),
    ({"Type": "no-such-backend"}, "backend type"),
    ({"MTU": 70000}, "MTU"),
    ({"Port": "eight"}, "Port"),
    (b'{ "Network": "10.244.0.0/16", ', "line 1|column"),
    (b"", "EOF|empty|end of"),
    (b"\xff\xfe{}", "UTF-8"),
    (None, "not a regular file"),
]


def put(path, data, whole):
    """Writes a file in the place of what is there: as a whole, or as an editor that overwrites it."""
    if path.is_dir():
        path.rmdir()
    if data is None:
        path.unlink(missing_ok=True)
        path.mkdir()
    elif whole:
        new = path.with_name(path.name + ".new")
        new.write_bytes(data)
        new.rename(path)
    else:
        path.write_bytes(data)


class Campaign:
    def __init__(self, root):
        self.keeper = int((root / "pid").read_text())
        self.settings = root / "etc/tartan/tartan.toml"
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        self.net_conf = root / "net-conf.json"
        self.log = (root / "log").open("rb")
        self.conf = json.loads(self.net_conf.read_text())
        # The udp format has no MTU of its own.
        is_vxlan = self.conf["Backend"]["Type"] == "vxlan"
        self.net_confs = [broken for broken in BROKEN_NET_CONFS if is_vxlan or broken[1] != "MTU"]
        self.values = {key: values[0] for key, values in GOOD.items()}
        self.wrong = []
        self.counts = {"taken": 0, "the same": 0, "refused": 0, "without a signal": 0}

    def change(self, what, counted, patterns, path, data, whole, by_signal=True):
        """Until the log has answered with each of the patterns."""
        self.log.seek(0, os.SEEK_END)
        put(path, data, whole)
        if by_signal:
            os.kill(self.keeper, signal.SIGHUP)
        said, end = "", time.monotonic() + PATIENCE
        while missing := [pattern for pattern in patterns if not re.search(pattern, said)]:
            if time.monotonic() > end:
                self.wrong.append(f"{what}: the log does not say '{missing[0]}', but: {said[-1000:]}")
                return
            time.sleep(0.005)
            said += self.log.read().decode(errors="replace")
        self.counts[counted] += 1

    def good(self):
        return "".join(f"{key} = {value}\n" for key, value in self.values.items()).encode()

    def broken_net_conf(self, broken):
        if not isinstance(broken, dict):
            return broken
        if "Network" in broken:
            return json.dumps({**self.conf, **broken}).encode()
        return json.dumps({**self.conf, "Backend": {**self.conf["Backend"], **broken}}).encode()

    def turn(self, number):
        """A broken text, and then a good one: every second time a key has changed."""
        if number % 3 == 2:
            broken, named = self.net_confs[number // 3 % len(self.net_confs)]
            path, code, data = self.net_conf, "net-conf-refused", self.broken_net_conf(broken)
        else:
            data, named = BROKEN_SETTINGS[(number - number // 3) % len(BROKEN_SETTINGS)]
            path, code = self.settings, "configuration-refused"
        refusal = [rf"({named})[^\n]*code=\"{code}\""]
        self.change(f"{number}, {path.name} {data!r}", "refused", refusal, path, data, number % 2 == 0)
        changed, patterns, counted, whole = None, [NOTHING], "the same", number % 3 == 0
        if path == self.net_conf:
            data = json.dumps(self.conf).encode()
        else:
            if number % 2 == 0:
                changed = list(GOOD)[number // 2 % len(GOOD)]
                self.values[changed] = GOOD[changed][self.values[changed] == GOOD[changed][0]]
                patterns, counted = [rf"reload: {changed}: ", STARTED], "taken"
            data = self.good()
        by_signal = changed is not None or number % 5 != 0
        counted = counted if by_signal else "without a signal"
        self.change(f"{number}, {changed}", counted, patterns, path, data, whole, by_signal)


def main():
    campaign = Campaign(Path(sys.argv[1]))
    campaign.change("the first", "taken", [STARTED], campaign.settings, campaign.good(), True)
    for number in range(1, int(sys.argv[2]) // 2 + 1):
        campaign.turn(number)
    print(json.dumps({**campaign.counts, "wrong": campaign.wrong}))
    sys.exit(bool(campaign.wrong))


main()
