"""Theano's flags for one worker: what the user has chosen stays, what a device or a BLAS needs is added."""

from __future__ import annotations

import configparser
import ctypes.util
import os
from collections.abc import Mapping
from pathlib import Path

from platoon_base.system.warn import warn_once

__all__ = ["completed_flags", "flags_with_blas", "is_chosen", "worker_flags"]

_WHERE_COMPILED = ("base_compiledir", "compiledir")


def worker_flags(device: str, environment: Mapping[str, str]) -> str:
    """Return ``THEANO_FLAGS`` for a worker on a device.

    A compile directory is left shared, and memory unreserved (``gpuarray.preallocate`` is Theano's default): others
    that compute on the same device may come, and a center needs room there too.

    Parameters
    ----------
    device : str
    environment : mapping
        With the user's ``THEANO_FLAGS`` and ``THEANORC``, if any.
    """
    flags = [environment.get("THEANO_FLAGS", "")]
    if _last(flags[0], "device") != device:
        flags.append(f"device={device}")
    if device != "cpu":
        if not is_chosen("enabled", environment, section="dnn"):
            flags.append("dnn.enabled=False")  # Theano 1.0.5 knows cuDNN 5 to 7 only
        if not is_chosen("floatX", environment):
            flags.append("floatX=float32")  # Theano's own default is float64
    return ",".join(filter(None, flags))


def flags_with_blas(environment: Mapping[str, str]) -> str:
    """Return ``THEANO_FLAGS`` with a BLAS: Theano asks ``numpy.distutils`` for it, which no longer knows."""
    flags = environment.get("THEANO_FLAGS", "")
    if is_chosen("ldflags", environment, section="blas"):
        return flags
    library = "-lopenblas" if ctypes.util.find_library("openblas") else ""
    return ",".join(filter(None, [flags, f"blas.ldflags={library}"]))


def completed_flags(device: str | None, environment: Mapping[str, str], flags_before: str) -> str:
    """Return ``THEANO_FLAGS`` to import Theano with, when a script may have replaced those it was started with.

    What the script has set stays, but for the device: that is the worker's, for two workers on one GPU would share it
    unknowingly. Where Theano keeps what it compiles stays as it was before, if the script says nothing of it.

    Parameters
    ----------
    device : str or None
        The worker's; None for a process that was given none.
    environment : mapping
        As the script has left it.
    flags_before : str
        ``THEANO_FLAGS`` before the script began.
    """
    flags = environment.get("THEANO_FLAGS", "")
    wanted = _last(flags, "device")
    if device is not None and wanted not in (None, device):
        warn_once(
            f"THEANO_FLAGS has device={wanted}, this worker was given {device}, which counts: name devices with "
            "platoon launch -D"
        )
    where = {name: _last(flags_before, name) for name in _WHERE_COMPILED if _last(flags, name) is None}
    kept = [f"{name}={folder}" for name, folder in where.items() if folder is not None]
    environment = {**environment, "THEANO_FLAGS": ",".join(filter(None, [flags, *kept]))}
    environment["THEANO_FLAGS"] = flags_with_blas(environment)
    return environment["THEANO_FLAGS"] if device is None else worker_flags(device, environment)


def _last(flags: str, option: str) -> str | None:
    """Return what flags say of an option, of several times the last; None if they do not."""
    pairs = (flag.partition("=") for flag in flags.split(","))
    return next((value.strip() for name, _, value in reversed(list(pairs)) if name.strip() == option), None)


def is_chosen(option: str, environment: Mapping[str, str], section: str = "global") -> bool:
    """Tell whether the user has set an option, in ``THEANO_FLAGS`` or in a configuration file."""
    name = option if section == "global" else f"{section}.{option}"
    if any(flag.split("=")[0].strip() == name for flag in environment.get("THEANO_FLAGS", "").split(",")):
        return True
    files = environment.get("THEANORC", "~/.theanorc").split(os.pathsep)
    config = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        config.read([Path(name).expanduser() for name in files])
    except configparser.Error:
        return False  # Theano itself will complain about the file, and better
    return config.has_option(section, option)
