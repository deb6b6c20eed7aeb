"""stop_thread.py PROCESS NAME: stops one thread of a process until that ends, as a debugger does: SIGSTOP would stop
them all.
"""

import ctypes
import os
import pathlib
import sys

# linux/ptrace.h, and wait.h: a thread's end too.
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000


def main(process, name):
    libc = ctypes.CDLL(None, use_errno=True)
    tasks = pathlib.Path(f"/proc/{process}/task")
    thread = next(int(task.name) for task in tasks.iterdir() if (task / "comm").read_text() == f"{name}\n")
    for request in (SEIZE, INTERRUPT):
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None):
            sys.exit(os.strerror(ctypes.get_errno()))
    while not os.WIFSIGNALED(os.waitpid(thread, WALL)[1]):
        pass


main(*sys.argv[1:])
