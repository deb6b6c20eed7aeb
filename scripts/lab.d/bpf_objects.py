#!/usr/bin/env python3
"""The BPF programs and maps of a lab: which it holds, and which of those outlive it.

    bpf_objects.py held NAMESPACE...   prints those that their processes and tc filters hold, "program 17" a line
    bpf_objects.py alive <LIST         prints the lines of such a list whose object still exists

An object lives as long as a descriptor, a filter or a pin holds it, and its number is not given again soon. Asked of
the kernel itself (bpf(2), BPF_PROG_GET_FD_BY_ID and BPF_MAP_GET_FD_BY_ID), so that no bpftool is needed.
"""

import ctypes
import errno
import glob
import json
import os
import platform
import re
import subprocess
import sys

# The number of the system call (syscall(2)), by machine; any other machine is told so.
SYSTEM_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
# Commands of linux/bpf.h; the attribute's first word is the object's number.
COMMANDS = {"program": 13, "map": 14}
# In /proc/PID/fdinfo (linux/Documentation/filesystems/proc.rst): what a descriptor of an object says.
NAMES = {"prog_id": "program", "map_id": "map"}


def said(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def held_by_processes(space):
    """The objects of which a process of the namespace has a descriptor."""
    for pid in said("ip", "netns", "pids", space).split():
        for path in glob.glob(f"/proc/{pid}/fdinfo/*"):
            try:
                with open(path, encoding="ascii") as file:
                    found = re.findall(r"^(prog_id|map_id):\s*(\d+)$", file.read(), re.M)
            except OSError:
                # It ended, or closed it, meanwhile.
                continue
            for name, number in found:
                yield f"{NAMES[name]} {number}"


def held_by_filters(space):
    """The programs of the namespace's tc filters."""
    def tc(*words):
        return json.loads(said("tc", "-n", space, "-j", *words) or "[]")

    for qdisc in tc("qdisc", "show"):
        for hook in ("ingress", "egress") if qdisc["kind"] in ("clsact", "ingress") else ():
            for one in tc("filter", "show", "dev", qdisc["dev"], hook):
                if number := one.get("options", {}).get("prog", {}).get("id"):
                    yield f"program {number}"


def exists(kind, number):
    """Whether the kernel has the object."""
    attribute = ctypes.create_string_buffer(number.to_bytes(4, sys.byteorder), 128)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(SYSTEM_CALL[platform.machine()], COMMANDS[kind], attribute, len(attribute))
    if descriptor >= 0:
        os.close(descriptor)
        return True
    if ctypes.get_errno() in (errno.ENOENT, errno.ENOSYS):
        return False
    sys.exit("scripts/lab: asked for BPF %s %d, the kernel says: %s" % (kind, number, os.strerror(ctypes.get_errno())))


def main():
    if sys.argv[1] == "held":
        held = (held_by_processes, held_by_filters)
        print("\n".join(sorted({line for space in sys.argv[2:] for one in held for line in one(space)})))
    else:
        for line in sys.stdin.read().splitlines():
            if line and exists(line.split()[0], int(line.split()[1])):
                print(line)


if __name__ == "__main__":
    main()
