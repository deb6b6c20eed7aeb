"""A namespace that goes with the lab, whatever becomes of the test that made it."""

import os
import subprocess


def make_namespace(prefix, name):
    """As make_namespace in test_case.sh: `lab down` takes away what is on the lab's record alone."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    with open(f"/run/tartan-lab/{prefix}/namespaces", "a", encoding="ascii") as record:
        record.write(f"{name} {os.stat(f'/run/netns/{name}').st_ino}\n")
