"""What a token bucket lets through while it is full, until SIGTERM.

    bucket.py DEVICE [DEVICE...]     prints one JSON object: per device {"rate": bits per second, "windows": N}

The bucket is the device's root queueing discipline. A window counts if something waited in front of the bucket at both of
its ends: then it was the bucket that held packets back. The rate is that of the median window.
"""

import json
import statistics
import subprocess
import sys
import time

from ending import Ending

WINDOW = 0.25


def look(device):
    """When, and what the bucket has sent and holds."""
    told = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", device, "root"], check=True, capture_output=True
    ).stdout
    (bucket,) = json.loads(told)
    return time.monotonic(), bucket["bytes"], bucket["backlog"]


def main(devices):
    ending = Ending()
    rates = {device: [] for device in devices}
    before = {device: look(device) for device in devices}
    while not ending.told:
        time.sleep(WINDOW)
        for device in devices:
            was, now = before[device], look(device)
            if was[2] and now[2]:
                rates[device].append((now[1] - was[1]) * 8 / (now[0] - was[0]))
            before[device] = now
    print(
        json.dumps(
            {
                device: {"rate": int(statistics.median(found or [0])), "windows": len(found)}
                for device, found in rates.items()
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
