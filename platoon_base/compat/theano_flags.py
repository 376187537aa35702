"""Theano's flags for one worker: the user's, and those that a device or a BLAS needs."""

from __future__ import annotations

import configparser
import ctypes.util
import functools
import os
from collections.abc import Mapping

from platoon_base.system.environment import DETERMINISTIC
from platoon_base.system.warn import warn_once

_WHERE_COMPILED = ("base_compiledir", "compiledir")
# Forward convolutions always add in one order.
_CONVOLUTIONS = ("algo_bwd_data", "algo_bwd_filter")


def worker_flags(device: str, environment: Mapping[str, str]) -> str:
    """Return ``THEANO_FLAGS`` for a worker on a device, given the user's environment."""
    # The compile directory stays shared. No memory is reserved (`gpuarray.preallocate`): other
    # processes and a center may need the device.
    return _with_device(_Options(environment), device)


def deterministic_flags(environment: Mapping[str, str]) -> str:
    """Return ``THEANO_FLAGS`` for bitwise reproducible results; the user's own flags stay."""
    return _with_deterministic(_Options(environment))


def _with_deterministic(options: _Options) -> str:
    flags = [options.flags]
    if not options.chosen("deterministic"):
        flags.append("deterministic=more")
    flags += [f"dnn.conv.{name}=deterministic" for name in _CONVOLUTIONS if not options.chosen(name, "dnn.conv")]
    return ",".join(filter(None, flags))


def chosen_device(environment: Mapping[str, str]) -> str:
    """Return the device that the user's ``THEANO_FLAGS`` name, or ``"cpu"``."""
    return _last(environment.get("THEANO_FLAGS", ""), "device") or "cpu"


def _with_device(options: _Options, device: str) -> str:
    flags = [options.flags]
    if _last(options.flags, "device") != device:
        flags.append(f"device={device}")
    if device != "cpu":
        if not options.chosen("enabled", section="dnn"):
            # Theano 1.0.5 supports only cuDNN 5 to 7.
            flags.append("dnn.enabled=False")
        if not options.chosen("floatX"):
            # Theano's own default is float64.
            flags.append("floatX=float32")
    return ",".join(filter(None, flags))


def flags_with_blas(environment: Mapping[str, str]) -> str:
    """Return ``THEANO_FLAGS`` with a BLAS, which Theano does not find by ``numpy.distutils``."""
    return _with_blas(_Options(environment))


def _with_blas(options: _Options) -> str:
    if options.chosen("ldflags", section="blas"):
        return options.flags
    library = "-lopenblas" if ctypes.util.find_library("openblas") else ""
    return ",".join(filter(None, [options.flags, f"blas.ldflags={library}"]))


def completed_flags(device: str | None, environment: Mapping[str, str], flags_before: str) -> str:
    """Return ``THEANO_FLAGS`` for the import of Theano, after the script may have replaced them."""
    # The script's flags stay, except for the device: workers would otherwise share a GPU silently.
    # The compile directory is that of `flags_before` unless the script names one.
    options = _Options(environment)
    wanted = _last(options.flags, "device")
    if device is not None and wanted not in (None, device):
        warn_once(
            f"THEANO_FLAGS has device={wanted}, and this worker was given {device}, which is "
            "used: name devices with platoon launch -D"
        )
    where = {name: _last(flags_before, name) for name in _WHERE_COMPILED if _last(options.flags, name) is None}
    kept = [f"{name}={folder}" for name, folder in where.items() if folder is not None]
    options.flags = ",".join(filter(None, [options.flags, *kept]))
    options.flags = _with_blas(options)
    if environment.get(DETERMINISTIC):
        options.flags = _with_deterministic(options)
    return options.flags if device is None else _with_device(options, device)


def _last(flags: str, option: str) -> str | None:
    pairs = (flag.partition("=") for flag in flags.split(","))
    return next((value.strip() for name, _, value in reversed(list(pairs)) if name.strip() == option), None)


class _Options:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.flags = environment.get("THEANO_FLAGS", "")
        self._names = environment.get("THEANORC", "~/.theanorc").split(os.pathsep)

    @functools.cached_property
    def _configuration(self) -> configparser.ConfigParser:
        config = configparser.ConfigParser(strict=False, interpolation=None)
        try:
            config.read([os.path.expanduser(name) for name in self._names])
        except configparser.Error:
            # Theano itself reports the error, with details.
            config.clear()
        return config

    def chosen(self, option: str, section: str = "global") -> bool:
        name = option if section == "global" else f"{section}.{option}"
        if any(flag.split("=")[0].strip() == name for flag in self.flags.split(",")):
            return True
        return self._configuration.has_option(section, option)
