"""Theano's flags for one worker: what the user has chosen stays, what a device needs is added."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["is_chosen", "worker_flags"]


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
    flags = [environment.get("THEANO_FLAGS", ""), f"device={device}"]
    if device != "cpu":
        if not is_chosen("enabled", environment, section="dnn"):
            flags.append("dnn.enabled=False")  # Theano 1.0.5 knows cuDNN 5 to 7 only
        if not is_chosen("floatX", environment):
            flags.append("floatX=float32")  # Theano's own default is float64
    return ",".join(filter(None, flags))


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
