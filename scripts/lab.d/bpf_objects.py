#!/usr/bin/env python3
"""The BPF programs and maps of a lab: which it holds, and which of those outlive it.

    bpf_objects.py held NAMESPACE...    prints those that the namespaces' processes and tc filters hold, "program 17" a line
    bpf_objects.py alive <LIST          prints the lines of such a list whose object still exists

An object lives as long as a descriptor, a filter or a pin holds it, and its number is not given again soon. Asked of the
kernel itself (bpf(2), BPF_PROG_GET_FD_BY_ID and BPF_MAP_GET_FD_BY_ID), so that no bpftool is needed.
"""

import ctypes
import errno
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


def held_by_processes(space):
    """The objects of which a process of the namespace has a descriptor."""
    pids = subprocess.run(["ip", "netns", "pids", space], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    for pid in pids:
        folder = "/proc/%s/fdinfo" % pid
        try:
            descriptors = os.listdir(folder)
        except OSError:
            # It ended meanwhile.
            continue
        for descriptor in descriptors:
            try:
                with open("%s/%s" % (folder, descriptor), encoding="ascii") as file:
                    text = file.read()
            except OSError:
                continue
            for name, number in re.findall(r"^(prog_id|map_id):\s*(\d+)$", text, re.M):
                yield "%s %s" % (NAMES[name], number)


def tc(space, *words):
    printed = subprocess.run(["tc", "-n", space, "-j", *words], stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed or "[]")


def held_by_filters(space):
    """The programs of the namespace's tc filters."""
    for qdisc in tc(space, "qdisc", "show"):
        if qdisc["kind"] not in ("clsact", "ingress"):
            continue
        for hook in ("ingress", "egress"):
            for one in tc(space, "filter", "show", "dev", qdisc["dev"], hook):
                number = one.get("options", {}).get("prog", {}).get("id")
                if number is not None:
                    yield "program %d" % number


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
        found = {line for space in sys.argv[2:] for held in (held_by_processes, held_by_filters) for line in held(space)}
        print("\n".join(sorted(found)))
    else:
        for line in sys.stdin.read().splitlines():
            if line and exists(line.split()[0], int(line.split()[1])):
                print(line)


if __name__ == "__main__":
    main()
