"""Changes the configuration of an agent again and again, every second time so that it cannot be used, and looks in the
agent's log whether each change was taken, or refused with its key and the reason.

    reloads.py ROOT COUNT RATE      ROOT: the agent's directory, with `pid`, `log` and `net-conf.json`; RATE: changes a second

A change is asked for by SIGHUP to the keeper. Every twentieth good change comes without: after a text that was refused, the
agent reads the file by itself. The next change waits for the answer to this one, so that none is passed over; how fast they
came is told. Prints a JSON object; exit code 1 where an answer was not as it should be.
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
# Seconds: a start on a busy machine; a file that is read each second.
PATIENCE = 15

GOOD_SETTINGS = [
    ("shrink-grace", ["300", "400"]),
    ("reclaim-after", ["60", "90"]),
    ("strict-pods", ["false", "true"]),
    ("spin", ['"off"', '"auto"']),
    ("metrics-limit", ["2000", "3000"]),
    ("gather", ["true", "false"]),
]
# The text of tartan.toml as bytes, and what the refusal must name.
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


def without(key):
    return lambda conf: json.dumps({name: value for name, value in conf.items() if name != key}).encode()


def with_backend(**keys):
    return lambda conf: json.dumps({**conf, "Backend": {**conf["Backend"], **keys}}).encode()


# The net-conf from the good one, and what the refusal must name.
BROKEN_NET_CONFS = [
    (without("Network"), "Network"),
    (lambda conf: json.dumps({**conf, "Network": "10.244.0.0/33"}).encode(), "Network"),
    (with_backend(Type="no-such-backend"), "backend type"),
    (with_backend(MTU=70000), "MTU"),
    (with_backend(Port="eight"), "Port"),
    (lambda conf: json.dumps(conf).encode()[:-9], "line 1|column"),
    (lambda conf: b"", "EOF|empty|end of"),
    (lambda conf: b"\xff\xfe" + json.dumps(conf).encode(), "UTF-8"),
    (None, "not a regular file"),
]


class Agent:
    def __init__(self, root):
        self.root = Path(root)
        self.keeper = int((self.root / "pid").read_text())
        self.settings = self.root / "etc/tartan/tartan.toml"
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        self.net_conf = self.root / "net-conf.json"
        self.log = (self.root / "log").open("rb")
        self.log.seek(0, os.SEEK_END)
        self.said = b""

    def ask(self):
        self.said = b""
        self.log.seek(0, os.SEEK_END)
        os.kill(self.keeper, signal.SIGHUP)

    def waits_for(self, *patterns):
        """The first of the patterns that the log does not answer with in time, or None."""
        end = time.monotonic() + PATIENCE
        while True:
            self.said += self.log.read()
            text = self.said.decode(errors="replace")
            missing = [pattern for pattern in patterns if not re.search(pattern, text)]
            if not missing:
                return None
            if time.monotonic() > end:
                return missing[0]
            time.sleep(0.002)


def put(path, data, whole):
    """Writes a file in the place of what is there: as a whole, or as an editor that overwrites it; None: a directory."""
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
    def __init__(self, agent):
        self.agent = agent
        self.conf = json.loads(agent.net_conf.read_text())
        self.values = {key: values[0] for key, values in GOOD_SETTINGS}
        self.mtu = 0
        self.wrong = []
        self.counts = {"taken": 0, "the same": 0, "refused": 0, "without a signal": 0}

    def good_text(self):
        return "".join(f"{key} = {value}\n" for key, value in self.values.items()).encode()

    def good_net_conf(self):
        backend = dict(self.conf["Backend"])
        if self.mtu:
            backend["MTU"] = self.mtu
        return {**self.conf, "Backend": backend}

    def settle(self, number, what, counted, *patterns):
        missing = self.agent.waits_for(*patterns)
        if missing is None:
            self.counts[counted] += 1
        else:
            said = self.agent.said.decode(errors="replace")[-1500:]
            self.wrong.append(f"{number}, {what}: the log does not say '{missing}', but: {said}")

    def broken(self, number):
        choice = number // 2
        if choice % 3 == 2:
            make, named = BROKEN_NET_CONFS[choice // 3 % len(BROKEN_NET_CONFS)]
            data = make and make(self.good_net_conf())
            path, code = self.agent.net_conf, "net-conf-refused"
        else:
            data, named = BROKEN_SETTINGS[(choice - choice // 3) % len(BROKEN_SETTINGS)]
            path, code = self.agent.settings, "configuration-refused"
        put(path, data, whole=choice % 2 == 0)
        self.agent.ask()
        self.settle(number, f"{path.name} {data!r}", "refused", rf"({named})[^\n]*code=\"{code}\"")
        return path

    def good(self, number, path):
        """Puts right what was broken, and every second time changes a key as well."""
        choice = number // 2
        changed = None
        if choice % 2 == 0:
            if path == self.agent.net_conf and self.conf["Backend"]["Type"] == "vxlan":
                self.mtu = 1400 if self.mtu != 1400 else 1440
                changed = "Backend.MTU"
            else:
                changed, values = GOOD_SETTINGS[choice // 2 % len(GOOD_SETTINGS)]
                self.values[changed] = values[values[0] == self.values[changed]]
        by_itself = choice % 20 == 19 and changed is None
        self.agent.said = b""
        put(self.agent.settings, self.good_text(), whole=choice % 3 == 0)
        put(self.agent.net_conf, json.dumps(self.good_net_conf()).encode(), whole=choice % 3 == 0)
        if not by_itself:
            self.agent.ask()
        if by_itself:
            self.settle(number, "a file that is corrected", "without a signal", NOTHING)
        elif changed:
            self.settle(number, changed, "taken", rf"reload: {re.escape(changed)}: ", STARTED)
        else:
            self.settle(number, "the same values", "the same", NOTHING)


def main():
    agent, count, rate = Agent(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    campaign = Campaign(agent)
    put(agent.settings, campaign.good_text(), whole=True)
    agent.ask()
    campaign.agent.waits_for(STARTED)
    begin = time.monotonic()
    late = 0
    path = agent.settings
    for number in range(count):
        due = begin + number / rate
        now = time.monotonic()
        if now < due:
            time.sleep(due - now)
        else:
            # Those that waited for an answer are not made up for.
            begin += now - due
            late += now - due > 0.05
        if number % 2 == 0:
            path = campaign.broken(number)
        else:
            campaign.good(number, path)
    seconds = time.monotonic() - begin
    print(json.dumps({"reloads": count, **campaign.counts, "late": late, "wrong": campaign.wrong, "seconds": round(seconds, 1)}))
    sys.exit(bool(campaign.wrong))


main()
