"""Checkpoints of a job as files: atomic, checked when they are read, and plain ``.npz`` for NumPy."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional, Union

import msgspec
import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.rules.center import Rule, settings_of
from platoon_base.sharding import START, Position
from platoon_base.system.own_files import create_new, open_regular

_FORCE_EVERY_BYTES = 1 << 26


class _SteadyFile(io.FileIO):
    """A file that is flushed at intervals, so that closing it is fast; ``count`` gets written
    bytes.
    """

    def __init__(self, path: Path, count: Callable[[int], None]) -> None:
        super().__init__(path, "wb", opener=lambda name, flags: create_new(name))
        self._count = count
        self._unforced = 0

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._count(written)
        self._unforced += written
        if self._unforced >= _FORCE_EVERY_BYTES:
            os.fdatasync(self.fileno())
            self._unforced = 0
        return written


def write_arrays(
    path: Path,
    unfinished: str,
    about: bytes,
    named: Mapping[str, Array],
    count: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Write a file under a temporary name, flush it to the disk and rename it; on errors remove it.

    The name has a random part: no other process can place a link there.
    """
    other = path.with_name(f"{unfinished}-{os.urandom(8).hex()}.npz")
    try:
        with io.BufferedWriter(_SteadyFile(other, count)) as file:
            _write(file, {"about": np.frombuffer(about, dtype=np.uint8), **named})
            file.flush()
            os.fsync(file.fileno())
        os.replace(other, path)
    except BaseException:
        with contextlib.suppress(OSError):
            other.unlink()
        raise


def _write(file: IO[bytes], named: Mapping[str, Array]) -> None:
    """Write as `numpy.savez`, but without its errors from a destructor when the disk is full."""
    import zipfile

    write_array: Any = np.lib.format.write_array  # NumPy declares no types for it.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)


# ::
#
#     with numpy.load("checkpoint-00000007.npz") as file:
#         about = json.loads(file["about"].tobytes())   # see `About`
#         weights = file["center/0"]                     # parameter about["parameters"][0]
#
# The newest checkpoint is whole at any time: files are renamed after they are flushed to the disk.
# Arrays have the CRC-32 sums of the zip format; shapes and dtypes are compared with ``about``.


log = logging.getLogger(__name__)

FORMAT = 1
KEPT_FILES = 2  # The newest may be damaged.
_NAME = re.compile(r"checkpoint-(\d{8,})\.npz")  # Numbers from 100,000,000 on have more digits.
_DAMAGED = re.compile(r"checkpoint-(\d{8,})\.damaged")
_UNFINISHED = "unfinished-checkpoint"
_BLOCK = 1 << 18  # Elements.


class _DamagedError(ConfigurationError):
    """The contents of a checkpoint are not those of any center."""


class _FormatError(ConfigurationError):
    """A checkpoint was written by another version of this package."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint besides its arrays; JSON in the file."""

    format: int = FORMAT
    seed: int
    size: int
    seconds: float  # The total time of all runs.
    rule: str = ""
    settings: str = ""  # The rule with its arguments; empty if unknown.
    # Names, shapes and dtypes; entry i is the array "center/i".
    parameters: list[tuple[str, tuple[int, ...], str]] = []
    # The number of the rule's buffers; entry i of buffer k is the array "state k/i".
    states: int = 0
    positions: dict[int, Position] = {}  # Each rank's position at its latest synchronization.
    bound: bool = False  # Bound workers depend on each other and resume at one position.
    kept: dict[int, dict[str, bytes]] = {}  # The values of `Worker.keep` by rank, in MessagePack.
    reported: dict[str, Optional[Union[int, float, str]]] = {}
    threads: str = ""  # With --deterministic: the variables that set the number of threads.

    @property
    def layout(self) -> Layout:
        return Layout(tuple(ParameterSpec(*spec) for spec in self.parameters))

    def position(self, rank: int, size: int) -> Position:
        """Return the position at which a rank of a job of ``size`` workers continues.

        Bound workers continue together, at the earliest position of all. With another number of
        workers the shards differ: all restart the earliest epoch, and divide the number of steps.
        """
        launched = [self.positions.get(old, START) for old in range(self.size)]
        if size != self.size:
            return Position(min(p.epoch for p in launched), 0, sum(p.steps for p in launched) // size)
        return min(launched) if self.bound else launched[rank]


class Checkpoint(NamedTuple):
    """The consistent state of a job; ``states`` are the rule's buffers besides the center."""

    about: About
    center: list[Array]
    states: list[list[Array]]

    @classmethod
    def of(cls, about: About, layout: Layout, center: list[Array], states: list[list[Array]]) -> Checkpoint:
        """Create a checkpoint, and set the fields of ``about`` that describe the arrays."""
        specs = [(spec.name, spec.shape, spec.dtype) for spec in layout.specs]
        return cls(msgspec.structs.replace(about, parameters=specs, states=len(states)), center, states)


def newest_in(folder: Path) -> Path:
    """Return the newest whole checkpoint in a folder, which a running job may be writing to."""
    matches = [(_NAME.fullmatch(each.name), each) for each in folder.iterdir()]
    found = sorted(((int(match[1]), each) for match, each in matches if match), reverse=True)
    for _, path in found:
        with contextlib.suppress(_DamagedError):
            check_checkpoint(path)
            return path
    what = "no complete checkpoint" if found else "no checkpoint"
    raise ConfigurationError(f"there is {what} in {folder}: name the folder of --resume, or checkpoints/ in the logs")


def _arrays(checkpoint: Checkpoint) -> dict[str, Array]:
    named = {f"center/{i}": array for i, array in enumerate(checkpoint.center)}
    for k, state in enumerate(checkpoint.states):
        named.update({f"state {k}/{i}": array for i, array in enumerate(state)})
    return named


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; raise `ConfigurationError` if it is damaged or not finite."""
    about, arrays = _read(path, lambda array: array)
    center = [arrays[f"center/{i}"] for i in range(len(about.parameters))]
    return Checkpoint(
        about, center, [[arrays[f"state {k}/{i}"] for i in range(len(center))] for k in range(about.states)]
    )


def check_checkpoint(path: str | os.PathLike[str]) -> About:
    return _read(path, lambda array: np.broadcast_to(np.zeros((), array.dtype), array.shape))[0]


def _read(path: str | os.PathLike[str], keep: Callable[[Array], Array]) -> tuple[About, dict[str, Array]]:
    arrays: dict[str, Array] = {}
    bad: dict[str, int] = {}  # Elements that are not finite.
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as found:
            about = msgspec.json.decode(found["about"].tobytes(), type=About)
            for name in found.files:
                if name != "about":
                    array = found[name]
                    arrays[name], bad[name] = keep(array), _first_nonfinite(array)
    except (OSError, MemoryError) as exc:
        raise ConfigurationError(f"cannot read the checkpoint {path}: {exc}") from exc
    except Exception as exc:  # Damaged bytes raise many kinds of errors.
        raise _DamagedError(
            f"{path} is not a complete checkpoint ({type(exc).__name__}: {exc}); use another one, or start over"
        ) from exc
    if about.format != FORMAT:
        raise _FormatError(
            f"{path} has format {about.format}, and this version reads format {FORMAT}; use the version that wrote it"
        )
    for of in ("center", *(f"state {k}" for k in range(about.states))):
        for i, (name, shape, dtype) in enumerate(about.parameters):
            array = arrays.get(f"{of}/{i}")
            if array is None:
                raise _DamagedError(
                    f"{path} is not a complete checkpoint, because '{of}/{i}' is missing; use another one"
                )
            if array.shape != shape or array.dtype != dtype:
                raise _DamagedError(
                    f"{path} is not a complete checkpoint: {name} is "
                    f"{array.dtype}{list(array.shape)} in it, and should be {dtype}{list(shape)}; "
                    "use another one"
                )
            if bad[f"{of}/{i}"] >= 0:
                where = "" if of == "center" else f" of the rule's {of}"
                raise _DamagedError(
                    f"{path} cannot be resumed: element {bad[f'{of}/{i}']}{where} of {name} is a NaN or an infinity, "
                    "which must not enter the center; use another one, or start over"
                )
    return about, arrays


def _require_finite(checkpoint: Checkpoint) -> None:
    for of, arrays in (
        ("", checkpoint.center),
        *((f" of the rule's state {k}", s) for k, s in enumerate(checkpoint.states)),
    ):
        for (name, *_), array in zip(checkpoint.about.parameters, arrays):
            bad = _first_nonfinite(array)
            if bad >= 0:
                raise ConfigurationError(
                    f"element {bad}{of} of {name} in the center is a NaN or an infinity, so the center is not saved"
                )


def _first_nonfinite(array: Array) -> int:
    """Return the flat index of the first NaN or infinity; -1 if there is none."""
    if array.dtype.kind != "f":
        return -1
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):  # The masks stay small.
        finite = np.isfinite(flat[start : start + _BLOCK])
        if not finite.all():
            return start + int(np.argmin(finite))
    return -1


class CheckpointFolder:
    """The folder of one job's checkpoints: the newest two, and a lock that excludes other jobs."""

    def __init__(self, path: Path) -> None:
        from platoon_base.system.folder_lock import FolderLock, locks_stay_on_this_host

        self.path = path = path.absolute()  # Workers may change the current folder.
        self.written_bytes = 0  # It grows while a file is written.
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(path)
            self._status = os.fstat(self._lock.fd)
            _force_names(path)
        except BlockingIOError:
            raise ConfigurationError(
                f"another job writes its checkpoints to {path}: wait until it ends, or name another folder"
            ) from None
        except OSError as exc:
            raise ConfigurationError(f"cannot write checkpoints to {path}: {exc}; name another folder") from exc
        why = locks_stay_on_this_host(path)
        if why:
            log.warning(
                "%s is on a file system (%s) whose locks other hosts may not see, so a second "
                "job there could overwrite its checkpoints unnoticed. Use a separate folder for "
                "each job",
                path,
                why,
            )

    def numbers(self) -> list[int]:
        found = (_NAME.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def file(self, number: int) -> Path:
        return self.path / f"checkpoint-{number:08d}.npz"

    def newest(self) -> tuple[Path, About] | None:
        """Return the newest whole checkpoint, or None; raise if all are damaged."""
        damaged: dict[Path, ConfigurationError] = {}
        for number in reversed(self.numbers()):
            path = self.file(number)
            try:
                about = check_checkpoint(path)
            except _FormatError:
                raise
            except ConfigurationError as exc:
                damaged[path] = exc
                continue
            for other, problem in damaged.items():
                log.warning("skipped: %s", problem)
                if isinstance(problem, _DamagedError):
                    # It must not count as one of the two kept files.
                    with contextlib.suppress(OSError):
                        other.rename(other.with_suffix(".damaged"))
            return path, about
        if damaged:
            problems = "; ".join(map(str, damaged.values()))
            raise ConfigurationError(
                f"no checkpoint in {self.path} is usable: {problems}. Move them away to start over"
            )
        return None

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write the next checkpoint, and remove all but the newest two.

        On `OSError` earlier checkpoints are unchanged; values that are not finite raise, since
        training could not resume from them.
        """
        _require_finite(checkpoint)
        self._require_there()
        numbers = self.numbers()
        path = self.file(numbers[-1] + 1 if numbers else 1)
        self._remove_unfinished()  # Only dead jobs have left some: this one holds the lock.
        write_arrays(path, _UNFINISHED, msgspec.json.encode(checkpoint.about), _arrays(checkpoint), self._count)
        os.fsync(self._lock.fd)
        for number in numbers[: 1 - KEPT_FILES]:
            with contextlib.suppress(OSError):
                self.file(number).unlink()
        self._remove_damaged(numbers[-1] if numbers else 1)
        return path

    def _remove_damaged(self, before: int) -> None:
        for name in os.listdir(self.path):
            match = _DAMAGED.fullmatch(name)
            if match is not None and int(match[1]) < before:
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()

    def _remove_unfinished(self) -> None:
        for name in os.listdir(self.path):
            if name.startswith(_UNFINISHED):
                with contextlib.suppress(OSError):  # Another user may own it.
                    (self.path / name).unlink()

    def _count(self, size_bytes: int) -> None:
        self.written_bytes += size_bytes

    def _require_there(self) -> None:
        """Create the folder again if it was removed; raise if another one is in its place."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), self._status):
                return
            raise OSError(f"{self.path} is not the folder that it was at the start: was a disk mounted or unmounted?")
        there = next(parent for parent in self.path.parents if parent.exists())
        if there.stat().st_dev != self._status.st_dev:
            raise OSError(f"{self.path} and the disk that it was on were removed")
        self._lock.close()
        self.path.mkdir(parents=True)
        self._lock = type(self._lock)(self.path)
        self._status = os.fstat(self._lock.fd)
        _force_names(self.path)
        log.warning("the folder of the checkpoints, %s, was removed and has been created again", self.path)

    def close(self) -> None:
        """Release the folder's lock; a second call does nothing."""
        self._lock.close()


def _force_names(folder: Path) -> None:
    """Flush the directory entries of a folder and its parents on that disk: they may be new."""
    device = folder.stat().st_dev
    for parent in folder.parents:
        if parent.stat().st_dev != device:
            return
        with contextlib.suppress(OSError):  # An unreadable folder is not ours, and not new.
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def require_alike(about: About, layout: Layout, rule: Rule) -> None:
    """Raise unless a model with this rule can resume from a checkpoint; warn if settings differ."""
    name, states = type(rule).__name__, len(rule.center_state)
    if (name, states) != (about.rule, about.states):
        raise ConfigurationError(
            f"got the rule {name} with {states} buffers beside the center, and the checkpoint is "
            f"of the rule {about.rule} with {about.states}. Continue with that rule. Or start "
            "from the checkpoint's weights only: launch without --resume, read the arrays "
            '"center/0", "center/1" ... with numpy.load (or "state 0/0" ... if the rule '
            "keeps an average of the center, as AveragedEASGD does), and put them into the "
            "parameters before they are shared"
        )
    layout.require_same(about.layout, "the checkpoint's")
    settings = settings_of(rule)
    if settings and about.settings and settings != about.settings:
        log.warning("the checkpoint is of the rule %s; the job continues with %s", about.settings, settings)
