"""The couriers among the children of a process."""

import contextlib

import psutil

__all__ = ["couriers_of"]


def couriers_of(pid=None):
    """List the running couriers that a process, by default this one, has started; it may have other children."""
    found = []
    for process in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended, though its parent may not know yet
            if "platoon_base.courier.process" in " ".join(process.cmdline()):
                found.append(process)
    return found
