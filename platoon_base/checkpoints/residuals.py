"""The residuals of compressed rounds that belong to a checkpoint; each host writes its own file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from platoon_base.hosts.world import World

__all__ = ["UNFINISHED", "Moment", "SavedResiduals", "prune", "residual_path", "usable_key"]

UNFINISHED = "unfinished-residual"
_NAME = re.compile(r"residual-(\d+)-([0-9a-f]+)\.npz")


class SavedResiduals(msgspec.Struct, frozen=True, kw_only=True):
    """The residuals that belong to a checkpoint; an empty ``key`` if they were not saved."""

    key: str = ""
    hosts: int
    compression: str


class Moment(NamedTuple):
    """The round of a saved center, which identifies the residuals to save with it.

    ``number`` is the latest round in the center, ``stamp`` the version of its latest overwrite,
    ``kept`` the keys of the checkpoints whose residuals stay; None keeps all.
    """

    number: int
    stamp: int
    key: str
    kept: list[str] | None


def usable_key(saved: SavedResiduals | None, world: World) -> tuple[str, str]:
    """Return the key of the residuals for a resumed job, and the reason if some are lost."""
    if saved is None:
        return "", ""
    if not world.several:
        return "", f"it is of {saved.hosts} hosts, and this job runs on one"
    if world.hosts != saved.hosts:
        return "", f"it is of {saved.hosts} hosts, and this job has {world.hosts}"
    if world.compression != saved.compression:
        return "", f"it is of --hosts-compression {saved.compression}, and this job has {world.compression}"
    return saved.key, "" if saved.key else "they were not saved with it"


def residual_path(folder: str | os.PathLike[str], host: int, key: str) -> Path:
    return Path(folder, f"residual-{host}-{key}.npz")


def prune(folder: Path, is_kept: Callable[[str], bool], of_host: Callable[[int], bool] = lambda host: True) -> None:
    """Remove the residuals of some hosts whose key is not kept; errors are ignored."""
    with contextlib.suppress(OSError):
        # Keys are checked after the listing: they are published before their files exist.
        for name in os.listdir(folder):
            match = _NAME.fullmatch(name)
            if match and not is_kept(match[2]) and of_host(int(match[1])):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
