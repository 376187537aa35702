"""Find and choose devices, in a separate process: a process with a GPU library may not fork."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.system.environment import MAX_WORKERS
from platoon_base.system.limits import available_cores
from platoon_base.timeouts import timeout

# Default limit: each worker has a copy of the model and, often, of the data.
CPU_DEFAULT = 4

_ALL = ("auto", "cuda")
KINDS = (*_ALL, "cpu")  # Words of -D that allow -n.
_NAME = re.compile(r"cpu|cuda(\d+)|opencl\d+:\d+")
_OLD_NAME = re.compile(r"gpu(\d*)")  # Names of Theano before 0.9.
_PYGPU_QUERY = """
import pygpu.gpuarray as g
def count(kind, platform):
    try:
        return g.count_devices(kind, platform)
    except Exception:
        return 0
def platforms(kind):
    try:
        return g.count_platforms(kind)
    except Exception:
        return 0
print(*(f"cuda{i}" for p in range(platforms("cuda")) for i in range(count("cuda", p))))
print(*(f"opencl{p}:{i}" for p in range(platforms("opencl")) for i in range(count("opencl", p))))
"""
# The driver applies CUDA_VISIBLE_DEVICES: its numbers are those of every library.
_DRIVER_QUERY = """
import ctypes, json
count, problem, reach = ctypes.c_int(), "", []
def check(error):
    if error:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(error, ctypes.byref(name))
        raise OSError((name.value or b"CUDA error %d" % error).decode())
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    devices = [ctypes.c_int() for _ in range(count.value)]
    for i, device in enumerate(devices):
        check(cuda.cuDeviceGet(ctypes.byref(device), i))
    for one in devices:
        can = ctypes.c_int()
        reach.append([])
        for other in devices:
            if one is not other:
                check(cuda.cuDeviceCanAccessPeer(ctypes.byref(can), one, other))
            reach[-1].append(one is other or bool(can.value))
except (OSError, AttributeError) as exc:
    problem = str(exc)
print(json.dumps([count.value, problem, reach]))
"""
_NO_DEVICE = "CUDA_ERROR_NO_DEVICE"
_NO_DRIVER = "libcuda.so.1"


class CudaDevices(NamedTuple):
    """Answer of the CUDA driver; ``reach[i][j]``: device i can access the memory of device j."""

    number: int
    problem: str  # Why there are none, or why some did not answer; empty if there is no problem.
    reach: list[list[bool]]

    @property
    def names(self) -> list[str]:
        """Names of the devices, such as ``["cuda0", "cuda1"]``."""
        return [f"cuda{i}" for i in range(self.number)]

    @property
    def broken(self) -> bool:
        """Whether there is a driver that fails; False without a driver or without a device."""
        return bool(self.problem) and _NO_DRIVER not in self.problem and self.problem != _NO_DEVICE

    def why_none(self) -> str:
        """Return the reason why there is no device, for a message."""
        if self.broken:
            return f"CUDA does not work here: {self.problem}"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and _NO_DRIVER not in self.problem:
            return f"there is no CUDA device here, with CUDA_VISIBLE_DEVICES={hidden!r}"
        return "there is no CUDA device here" + (", nor a driver" if _NO_DRIVER in self.problem else "")


def is_device_name(text: str) -> bool:
    """Return whether a word is valid for ``-D``, such as ``cpu``, ``cuda0`` or ``auto``."""
    return text in _ALL or bool(_NAME.fullmatch(text) or _OLD_NAME.fullmatch(text))


def cuda_devices() -> CudaDevices:
    """Query the CUDA driver for devices and peer access; cached until the environment changes."""
    return _ask_driver(frozenset(os.environ.items()))


@functools.lru_cache(maxsize=1)
def _ask_driver(environment: frozenset[tuple[str, str]]) -> CudaDevices:
    # -S: without site-packages the query takes 20 ms.
    command = [sys.executable, "-I", "-S", "-c", _DRIVER_QUERY]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=timeout("query"), check=False
        )
    except subprocess.TimeoutExpired:
        return CudaDevices(0, f"the driver did not answer within {timeout('query'):g} s", [])
    if done.returncode:
        return CudaDevices(0, f"the query of the driver failed with exit status {done.returncode}", [])
    return CudaDevices(*json.loads(done.stdout.splitlines()[-1]))


class Choice(NamedTuple):
    """One device for each worker."""

    devices: list[str]
    reason: str = ""  # Explains a default choice to the user; empty if the user named devices.


def choose_devices(workers: int | None, words: Sequence[str]) -> Choice:
    """Choose the workers' devices from ``-n`` and ``-D``; raise `ConfigurationError` if too few."""
    # With fewer CUDA devices than workers, neither sharing nor the CPU is chosen: the user must ask
    # for it.
    if workers is not None and workers < 1:
        raise ConfigurationError(f"got -n {workers}: a job needs at least 1 worker")
    if max(workers or 1, len(words)) > MAX_WORKERS:
        raise ConfigurationError(f"got {max(workers or 1, len(words))} workers: a job has 1 to {MAX_WORKERS}")
    if list(words) == ["cpu"]:
        return Choice(["cpu"] * (workers or 1))
    if not words or (len(words) == 1 and words[0] in _ALL):
        return _choose_cuda(workers, required=list(words) == ["cuda"])
    for word in words:
        if word in _ALL:
            raise ConfigurationError(f"got -D {' '.join(words)}: {word!r} means all of them, and must be the only word")
    if workers not in (None, len(words)):
        raise ConfigurationError(
            f"got both -n {workers} and -D with {len(words)} devices: each device gets one worker; leave -n out"
        )
    return Choice(list(words))


def _choose_cuda(workers: int | None, required: bool) -> Choice:
    cuda = cuda_devices()
    if cuda.number == 0:
        if required:
            raise ConfigurationError(f"got -D cuda, but {cuda.why_none()}; pass -D cpu for the CPU")
        cores = available_cores()
        number = min(cores, CPU_DEFAULT) if workers is None else workers
        rule = f"; one worker for each core, at most {CPU_DEFAULT}, without -n" if workers is None else ""
        return Choice(["cpu"] * number, f"{cuda.why_none()}{rule}")
    if workers is None:
        return Choice(cuda.names, "all there are")
    if workers > cuda.number:
        raise ConfigurationError(
            f"got -n {workers}, but there are {cuda.number} CUDA devices: pass -n {cuda.number}; "
            f"or -D cpu -n {workers} for the CPU; or name the devices to share one, such as -D "
            f"{' '.join([*cuda.names, cuda.names[0]])}"
        )
    return Choice(cuda.names[:workers], f"the first {workers} of {cuda.number}; -D cpu for the CPU")


def list_devices() -> list[str]:
    """Return the devices Theano can compute on, ``"cpu"`` first; raise without a working pygpu."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PYGPU_QUERY], capture_output=True, text=True, timeout=timeout("query"), check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise BackendUnavailableError(f"pygpu did not answer within {timeout('query'):g} s: is a GPU stuck?") from exc
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise BackendUnavailableError(
            f"pygpu does not work ({reason[0]}), and Theano needs it to compute on devices: on "
            "Debian 12 run `apt-get install python3-pygpu libgpuarray-dev`, and use Debian's "
            "Python 3.11 or an environment of `python3 -m venv --system-site-packages`"
        )
    return ["cpu", *done.stdout.split()]


def require_devices(names: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless each of these devices exists."""
    for name in names:
        if not _NAME.fullmatch(name):
            old = _OLD_NAME.fullmatch(name)
            now = f"{name} is now called cuda{old[1] or 0}; " if old else ""
            raise ConfigurationError(f"got device {name!r}: {now}devices are cpu, cuda0, cuda1 ..., opencl0:0 ...")
    present, reason = ["cpu"], ""
    if any(name.startswith("cuda") for name in names):
        # pygpu is not used here: Keras with another back end works without it.
        cuda = cuda_devices()
        present += cuda.names
        reason = "" if cuda.number else f" ({cuda.why_none()})"
    if any(name.startswith("opencl") for name in names):
        present = [*present, *(name for name in list_devices() if name.startswith("opencl"))]
    for name in names:
        if name not in present:
            raise ConfigurationError(f"device {name} does not exist here: there are {', '.join(present)}{reason}")


def can_share_center(devices: Sequence[str]) -> str:
    """Return why these devices cannot share a center in GPU memory; empty if they can."""
    if not devices:
        return "there is no CUDA device"
    distinct = list(dict.fromkeys(devices))
    for device in distinct:
        if not device.startswith("cuda"):
            return f"{device} is not a CUDA device"
    cuda = cuda_devices()
    for device in distinct:
        if device not in cuda.names:
            return f"device {device} does not exist: {cuda.why_none()}" if not cuda.number else f"there is no {device}"
    numbers = [int(device[len("cuda") :]) for device in distinct]
    for i, one in enumerate(numbers):
        for other in numbers[i + 1 :]:
            if not (cuda.reach[one][other] and cuda.reach[other][one]):
                return f"cuda{one} and cuda{other} cannot access each other's memory"
    return ""
