"""The residuals of compressed rounds that belong to a checkpoint: what it says of them, and their files beside it.

Each host writes its own residual, see `platoon_base.courier.keeping`, into a file whose name has the checkpoint's key.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from platoon_base.hosts.world import World

__all__ = ["UNFINISHED", "Moment", "SavedResiduals", "prune", "residual_path", "usable_key"]

UNFINISHED = "unfinished-residual"
_NAME = re.compile(r"residual-(\d+)-([0-9a-f]+)\.npz")


class SavedResiduals(msgspec.Struct, frozen=True, kw_only=True):
    """The residuals that belong to a checkpoint.

    Attributes
    ----------
    key : str
        In the names of their files; empty if they were not saved.
    hosts : int
        How many hosts the job had.
    compression : str
        The codec; see `platoon_base.compression.codecs.codec_of`.
    """

    key: str = ""
    hosts: int
    compression: str


class Moment(NamedTuple):
    """The round of a center that is saved, with which hosts save the residuals that belong to it.

    Attributes
    ----------
    number, stamp : int
        The latest round that the center includes, and the stamp of its latest overwrite.
    key : str
        Of the checkpoint.
    kept : list of str or None
        The keys of the checkpoints whose residuals stay; None if they are not known, so that all stay.
    """

    number: int
    stamp: int
    key: str
    kept: list[str] | None


def usable_key(saved: SavedResiduals | None, world: World) -> tuple[str, str]:
    """Return the key of the residuals with which a resumed job goes on, and why there is none if some are lost."""
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
    """Return the path of a host's residual."""
    return Path(folder, f"residual-{host}-{key}.npz")


def prune(folder: Path, kept: Collection[str], of_host: Callable[[int], bool] = lambda host: True) -> None:
    """Remove the residuals of some hosts whose checkpoint is not kept; a file that cannot be removed stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            match = _NAME.fullmatch(name)
            if match and match[2] not in kept and of_host(int(match[1])):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
