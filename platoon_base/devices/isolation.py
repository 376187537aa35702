"""The GPU of a worker: frameworks are kept to it, and a warning reports computing elsewhere.

Each framework is configured right after the script imports it, by a registered function. Theano
receives its device through its flags.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from platoon_base.frameworks.registered import registered
from platoon_base.parameters import is_tensor
from platoon_base.system.imports import AfterImport
from platoon_base.system.warn import warn_once

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_MAX_DEVICES = 64  # The driver ignores numbers from the first missing one on.


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
    """GPU of a worker; ``number`` is its index among the devices that CUDA has in this process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def bring_to_front(self) -> bool:
        """Make this GPU CUDA's first; False if the script itself has chosen other devices."""
        # Once CUDA is initialized, CUDA_VISIBLE_DEVICES has no effect and the number stays.
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


# No framework is imported here: arrays are recognized by their attributes.


def watch_theano(device: str) -> None:
    """Check right after Theano's first import that it computes on this worker's device."""
    # Call it before the script begins and after `compat.apply`.
    if device == "cpu":
        return
    if "theano" in sys.modules:
        _check_theano(sys.modules["theano"], device)
    else:
        sys.meta_path.insert(0, AfterImport({"theano": lambda theano: _check_theano(theano, device)}))


def _check_theano(theano: ModuleType, device: str) -> None:
    config, gpuarray = theano.config, sys.modules.get("theano.gpuarray")
    if config.device != device:
        warn_once(
            f"this worker was given {device}, but Theano computes on {config.device}: do not set device in "
            "THEANO_FLAGS or theano.config; name devices with platoon launch -D"
        )
    elif not getattr(gpuarray, "pygpu_activated", False):
        warn_once(
            f"Theano could not use {device} and REALLY COMPUTES ON THE CPU, many times slower: "
            "its error is above in this worker's log; `platoon doctor` shows what is missing"
        )
    if config.floatX == "float64":
        _warn_of_float64(device, "theano.config.floatX is")


def warn_if_not_on_device(device: str, params: Iterable[Any]) -> None:
    """Warn, by `PlatoonWarning` and in the log, if parameters are not on the worker's GPU."""
    if device == "cpu":
        return
    params = list(params)
    # A parameter may be a pair of name and value.
    values = [_internal(param[1] if isinstance(param, tuple) else param) for param in params]
    on_host = [_name(param, i) for i, (param, value) in enumerate(zip(params, values)) if isinstance(value, np.ndarray)]
    if on_host and len(on_host) == len(params):
        warn_once(
            f"this worker was given {device}, but all its parameters are in the memory of the host: it REALLY COMPUTES "
            "ON THE CPU, many times slower. With PyTorch move the model first: model.to('cuda'). If Theano reports an "
            "error above, `platoon doctor` tells what is missing; if the script is meant for the CPU, start it with "
            "platoon launch -D cpu"
        )
    elif on_host:
        warn_once(
            f"this worker was given {device}, but these parameters are in host memory and are "
            f"copied at every step: {some_names(on_host)}. Move them to the GPU; in Theano make "
            "them with theano.shared(value), without target='cpu'"
        )
    wide = [_name(param, i) for i, (param, value) in enumerate(zip(params, values)) if _is_float64(value)]
    if wide and len(on_host) < len(params):
        _warn_of_float64(device, f"{some_names(wide)}:", of_torch=any(map(is_tensor, values)))


def _internal(param: Any) -> Any:
    """Return the array of the values, an ndarray only if on the host; None if it is unknown."""
    if isinstance(param, np.ndarray):
        return param
    if is_tensor(param):
        return param.detach().numpy() if param.device.type == "cpu" else param
    try:
        return param.get_value(borrow=True, return_internal_type=True)
    except (AttributeError, TypeError):
        return None


def _is_float64(value: Any) -> bool:
    # A dtype of torch is compared by its text.
    return value is not None and str(value.dtype).endswith("float64")


def _name(param: Any, index: int) -> str:
    if isinstance(param, tuple):
        return str(param[0])
    return getattr(param, "name", None) or f"parameter {index}"


def some_names(names: list[str], at_most: int = 5) -> str:
    rest = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + rest


def _warn_of_float64(device: str, what: str, of_torch: bool = False) -> None:
    in_theano = "Set floatX=float32 in THEANO_FLAGS, and cast the data to theano.config.floatX"
    warn_once(
        f"{what} float64 on {device}, which is at most half as fast as float32, on most GPUs a "
        "thirtieth, and has twice the bytes to synchronize. "
        f"{'Call model.float(), and pass float32 data' if of_torch else in_theano}"
    )
