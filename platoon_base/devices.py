"""Which devices there are to compute on, asked in a process of its own: after a GPU library no process may fork."""

from __future__ import annotations

import re
import subprocess
import sys

from platoon_base.errors import BackendUnavailableError, ConfigurationError

__all__ = ["is_device_name", "list_devices", "require_devices"]

_NAME = re.compile(r"cpu|cuda(\d+)|opencl\d+:\d+")
_QUERY_TIMEOUT_S = 60
_QUERY = """
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


def is_device_name(text: str) -> bool:
    """Tell whether a word looks like a device: ``cpu``, ``cuda0``, ``opencl0:0``."""
    return bool(_NAME.fullmatch(text))


def list_devices() -> list[str]:
    """Name the devices that Theano can compute on here, ``"cpu"`` first.

    Raises
    ------
    BackendUnavailableError
        If pygpu, which knows the GPUs, is not installed or does not answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUERY], capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise BackendUnavailableError(f"pygpu did not answer within {_QUERY_TIMEOUT_S} s: is a GPU stuck?") from exc
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise BackendUnavailableError(
            f"pygpu does not work ({reason[0]}), and only it knows the GPUs: "
            "on Debian 12 run `apt-get install python3-pygpu`, then `make setup`"
        )
    return ["cpu", *done.stdout.split()]


def require_devices(names: list[str]) -> None:
    """Raise unless each of these devices exists.

    Raises
    ------
    ConfigurationError
        If a name is no device's, or one here.
    BackendUnavailableError
        If that cannot be found out.
    """
    for name in names:
        if not is_device_name(name):
            raise ConfigurationError(f"got device {name!r}: devices are cpu, cuda0, cuda1 ..., opencl0:0 ...")
    if set(names) == {"cpu"}:
        return
    present = list_devices()
    for name in names:
        if name not in present:
            raise ConfigurationError(f"device {name} does not exist here: there are {', '.join(present)}")
