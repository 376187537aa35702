"""The residual of one host as a file beside the checkpoints, with which the host goes on when the job is resumed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from platoon_base.compression.packing import residual_layout
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.world import World
from platoon_base.layout import Layout
from platoon_base.system.own_files import create_new
from platoon_base.system.regular_files import open_regular

__all__ = ["Saved", "load_residual", "save_residual"]

Array = np.ndarray[Any, Any]

_KEPT_FILES = 3  # those of the checkpoints that are kept, and one whose checkpoint is being written


class Saved(NamedTuple):
    """Where residuals are.

    Attributes
    ----------
    folder : str
        Of the checkpoints, on each host.
    key : str
        Of the checkpoint, see `platoon_base.checkpoints.files.About`.
    """

    folder: str
    key: str

    def path(self, host: int) -> Path:
        """Return the path of a host's residual."""
        return Path(self.folder, f"residual-{host}-{self.key}.npz")


def _about(world: World, layout: Layout) -> bytes:
    """Return what has to be equal when a residual is loaded."""
    specs = [tuple(spec) for spec in residual_layout(layout).specs]
    return msgspec.json.encode({"hosts": world.hosts, "compression": world.compression, "parameters": specs})


def save_residual(saved: Saved, world: World, layout: Layout, arrays: Sequence[Array]) -> None:
    """Write a host's residual, as a whole or not at all; remove those of old checkpoints. Raises `OSError`."""
    path = saved.path(world.host)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.stem}-{os.urandom(8).hex()}.npz")
    named = {f"residual/{i}": array for i, array in enumerate(arrays)}
    try:
        with open(unfinished, "wb", opener=lambda name, _: create_new(name)) as file:
            np.savez(file, about=np.frombuffer(_about(world, layout), np.uint8), **named)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    own = sorted(path.parent.glob(f"residual-{world.host}-*.npz"), key=lambda each: each.stat().st_mtime_ns)
    for old in own[:-_KEPT_FILES]:
        with contextlib.suppress(OSError):
            old.unlink()


def load_residual(saved: Saved, world: World, layout: Layout) -> list[Array]:
    """Read a host's residual.

    Raises
    ------
    ConfigurationError
        If there is none, or it is of another number of hosts, another codec or other parameters.
    """
    path = saved.path(world.host)
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as found:
            about = found["about"].tobytes()
            arrays = [found[f"residual/{i}"] for i in range(len(layout.specs))]
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be read: {exc}") from exc
    except Exception as exc:  # damaged bytes make zipfile, zlib and NumPy raise all sorts of errors
        raise ConfigurationError(f"{path} is damaged ({type(exc).__name__}: {exc})") from exc
    if about != _about(world, layout):
        raise ConfigurationError(f"{path} is of another number of hosts, another --hosts-compression or another model")
    return arrays
