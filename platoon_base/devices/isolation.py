"""Keep torch, JAX and TensorFlow to the GPU of their worker; by default they take the first one, or all.

Theano gets its device by its flags. No framework is imported here: each is set right after the script imports it.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from platoon_base.system.import_hook import AfterImport

__all__ = ["brought_to_front", "keep_to"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_MOST_DEVICES = 64  # the driver stops at the first number that there is not


def keep_to(device: str) -> None:
    """Make frameworks compute on this device; call it before the script begins.

    Parameters
    ----------
    device : str
        The device of this worker; nothing is done unless it is a CUDA device, such as ``"cuda1"``.
    """
    found = re.fullmatch(r"cuda(\d+)", device)
    if found is None:
        return
    device_now = _Numbered(int(found[1]))
    actions: dict[str, Callable[[Any], None]] = {
        "torch": lambda torch: _keep_torch(torch, device_now.number),
        "jax": lambda jax: _keep_jax(jax, device_now),
        "tensorflow": lambda tensorflow: _keep_tensorflow(tensorflow, device_now.number),
    }
    late = {name: actions.pop(name) for name in list(actions) if name in sys.modules}
    sys.meta_path.insert(0, AfterImport(actions))
    for name, action in late.items():
        action(sys.modules[name])


class _Numbered:
    """The worker's device, by its number in this process."""

    def __init__(self, number: int) -> None:
        self.number = number


def brought_to_front(number: int, visible: str | None) -> str | None:
    """Return what CUDA_VISIBLE_DEVICES is to be so that device ``number`` of those visible now becomes device 0.

    None if there is no such number, because the script itself has chosen devices since.
    """
    names = [str(i) for i in range(_MOST_DEVICES)] if visible is None else visible.split(",")
    if number >= len(names):
        return None
    return ",".join([names[number], *names[:number], *names[number + 1 :]])


def _keep_jax(jax: Any, device: _Numbered) -> None:
    # JAX 0.11 computes on device 0 only, if it sees one alone; the others stay visible to the driver, for the center.
    if device.number and _cuda_waits():
        visible = brought_to_front(device.number, os.environ.get(_VISIBLE))
        if visible is None:
            return
        os.environ[_VISIBLE] = visible
        device.number = 0
    jax.config.update("jax_cuda_visible_devices", str(device.number))


def _cuda_waits() -> bool:
    """Tell whether there is a driver that nobody in this process has initialized: it reads the environment then."""
    count = ctypes.c_int()
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == _NOT_INITIALIZED)
    except OSError:
        return False


def _keep_torch(torch: Any, number: int) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(number)


def _keep_tensorflow(tensorflow: Any, number: int) -> None:
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices:
        tensorflow.config.set_visible_devices(devices[number : number + 1], "GPU")
