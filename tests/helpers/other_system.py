"""Make this process look as one of macOS or Windows does: what Python has on Linux alone is not there.

`sys.platform` stays, as Python's own modules and NumPy ask for it to choose what they call.
"""

import importlib.abc
import os
import select
import signal
import sys

HIDDEN = {"posix_ipc", "fcntl", "resource", "pwd", "grp", "termios", "pty", "zmq"}
CALLS = ("sched_getaffinity", "getuid", "geteuid", "fork", "statvfs", "pidfd_open", "memfd_create", "killpg", "setsid")
SIGNALS = ("SIGCHLD", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "pthread_sigmask")


class _NotThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def pretend():
    """Hide it all, and zmq with it, which a job of one needs neither."""
    sys.meta_path.insert(0, _NotThere())
    for name in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:
        del sys.modules[name]
    for module, names in ((os, CALLS), (signal, SIGNALS), (select, ("poll", "epoll"))):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
