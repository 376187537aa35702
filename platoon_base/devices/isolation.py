"""Restrict frameworks to the GPU of their worker; by default they use the first one, or all.

Each framework is configured right after the script imports it, by a registered function. Theano
receives its device through its flags.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from platoon_base.frameworks.registered import registered
from platoon_base.system.import_hook import AfterImport

__all__ = ["WorkerGpu", "brought_to_front", "keep_to"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_MAX_DEVICES = 64  # The driver stops at the first missing number.


def keep_to(device: str) -> None:
    """Make frameworks compute on a CUDA device; call it before the script begins."""
    found = re.fullmatch(r"cuda(\d+)", device)
    if found is None:
        return
    gpu = WorkerGpu(int(found[1]))
    keepers = {k: v for framework in registered().frameworks.values() for k, v in framework.keep_to_gpu.items()}
    actions: dict[str, Callable[[Any], None]] = {}
    for name, keep in keepers.items():
        actions[name] = lambda module, keep=keep: keep(module, gpu)  # type: ignore[misc]
    late = {name: actions.pop(name) for name in list(actions) if name in sys.modules}
    sys.meta_path.insert(0, AfterImport(actions))
    for name, action in late.items():
        action(sys.modules[name])


class WorkerGpu:
    """GPU of a worker; ``number`` is its number in this process's CUDA."""

    def __init__(self, number: int) -> None:
        self.number = number

    def bring_to_front(self) -> bool:
        """Make this GPU CUDA's first; False if the script itself has chosen other devices."""
        # CUDA_VISIBLE_DEVICES has no effect once CUDA is initialized: then the number stays.
        if self.number and _cuda_waits():
            visible = brought_to_front(self.number, os.environ.get(_VISIBLE))
            if visible is None:
                return False
            os.environ[_VISIBLE] = visible
            self.number = 0
        return True


def brought_to_front(number: int, visible: str | None) -> str | None:
    """Return CUDA_VISIBLE_DEVICES with device ``number`` first; None if there is no such device."""
    names = [str(i) for i in range(_MAX_DEVICES)] if visible is None else visible.split(",")
    if number >= len(names):
        return None
    return ",".join([names[number], *names[:number], *names[number + 1 :]])


def _cuda_waits() -> bool:
    """Return whether the driver is not initialized yet and will read the environment."""
    count = ctypes.c_int()
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == _NOT_INITIALIZED)
    except OSError:
        return False
