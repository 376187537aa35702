"""Where the jobs of this user live on this host: their folders, the names of their shared memory, their leftovers."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Optional

import msgspec

from platoon_base.channels.keys import Keys
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.limits import require_room
from platoon_base.segments import SHM_FOLDER, Segment, abandoned

__all__ = ["NAMESPACE", "JobFiles", "Leftover", "leftovers", "remove", "running", "segment_prefix"]

# Jobs of another namespace are neither seen nor tidied up: for test runs beside jobs that matter.
NAMESPACE = "PLATOON_NAMESPACE"

_DESCRIPTION = "job.json"
_LONGEST_ADDRESS = len("ipc://") + 107  # sun_path of a Unix socket holds 108 bytes with its final zero
_YOUNG_S = 5.0  # a job that is just starting has no lock on its first file yet


class JobFiles(msgspec.Struct, frozen=True):
    """What a process must know to join a job; kept as JSON in the job's folder, which only its user can enter.

    Attributes
    ----------
    job : str
        12 hexadecimal digits.
    folder : str
    size : int
        Number of workers that the launcher starts.
    place : str
        Where the center is to live, ``"host"`` or ``"device"``.
    checkpoint : str
        The file that the job is resumed from; empty for a new one.
    endpoint : str
        Where the controller listens, if not at the socket in the folder.
    keys : Keys or None
        What proves to a controller that listens elsewhere that a process belongs to the job.
    """

    job: str
    folder: str
    size: int
    place: str = "host"
    checkpoint: str = ""
    endpoint: str = ""
    keys: Optional[Keys] = None

    @property
    def address(self) -> str:
        """Where the controller listens."""
        return self.endpoint or f"ipc://{self.folder}/control"

    @property
    def words(self) -> str:
        """Name of the segment with the control words."""
        return f"{segment_prefix()}{self.job}-words"

    @property
    def center(self) -> str:
        """Name of the segment with the center."""
        return f"{segment_prefix()}{self.job}-center"

    @property
    def collective(self) -> str:
        """Name of the segment through which ndarrays are all-reduced."""
        return f"{segment_prefix()}{self.job}-collective"

    @classmethod
    def create(cls, size: int, place: str = "host", checkpoint: str = "") -> JobFiles:
        """Make the folder of a new job."""
        job = secrets.token_hex(6)
        folder = _jobs_folder() / job
        require_room(folder.parent, "a job's description and its socket")
        folder.mkdir(mode=0o700)
        files = cls(job, str(folder), size, place, checkpoint)
        if len(files.address.encode()) > _LONGEST_ADDRESS:
            folder.rmdir()
            raise ConfigurationError(
                f"{folder} is too long a path for a Unix socket: set TMPDIR to a folder with a shorter one"
            )
        files.write()
        return files

    def write(self) -> None:
        """Write the description into the folder, for this user's eyes alone."""
        path = Path(self.folder, _DESCRIPTION)
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(msgspec.json.encode(self))
        os.replace(unfinished, path)

    @classmethod
    def read(cls, folder: str) -> JobFiles:
        """Read the description in a job's folder.

        Raises
        ------
        ConfigurationError
            If there is no job in that folder.
        """
        try:
            return msgspec.json.decode((Path(folder) / _DESCRIPTION).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as exc:
            raise ConfigurationError(
                f"PLATOON_JOB={folder!r} is not the folder of a running job ({exc}): unset it to run alone, or start "
                "the script with `platoon launch`"
            ) from exc

    @classmethod
    def find(cls, job: str) -> JobFiles:
        """Find a running job by its name or its folder.

        Raises
        ------
        ConfigurationError
            If there is none.
        """
        for files in running():
            if job in (files.job, files.folder):
                return files
        raise ConfigurationError(f"there is no running job {job!r}: `platoon jobs` lists them")

    def remove(self) -> None:
        """Remove everything of this job that has a name."""
        Segment.unlink(self.center)
        Segment.unlink(self.collective)
        Segment.unlink(self.words)
        shutil.rmtree(self.folder, ignore_errors=True)


class Leftover(NamedTuple):
    """Something that a dead job left behind."""

    path: Path
    size_bytes: int


def running() -> list[JobFiles]:
    """Describe this user's jobs that are still alive."""
    found = []
    for folder in sorted(_jobs_folder().iterdir()):
        words = f"{segment_prefix()}{folder.name}-words"
        if (SHM_FOLDER / words.lstrip("/")).exists() and not abandoned(words):
            with contextlib.suppress(ConfigurationError):  # it is just ending, or damaged: the others still count
                found.append(JobFiles.read(str(folder)))
    return found


def leftovers() -> list[Leftover]:
    """Find the folders and the shared memory of this user's dead jobs.

    A job lives as long as any process has its shared memory open. That is asked of the kernel, by a lock on the
    segment, and so holds across process and network namespaces.
    """
    prefix = segment_prefix().lstrip("/")
    segments = [p for p in SHM_FOLDER.glob(f"{prefix}*") if _old(p) and abandoned(p.name) and not _alive(p)]
    found = [Leftover(path, _size_bytes(path)) for path in segments]
    for folder in sorted(_jobs_folder().iterdir()):
        words = SHM_FOLDER / f"{prefix}{folder.name}-words"
        if re.fullmatch(r"[0-9a-f]{12}", folder.name) and _old(folder) and (not words.exists() or words in segments):
            found.append(Leftover(folder, sum(_size_bytes(path) for path in folder.glob("*"))))
    return found


def _alive(segment: Path) -> bool:
    """Tell whether the job of a segment lives: its control words are in use."""
    words = f"{segment.name.rpartition('-')[0]}-words"
    return (SHM_FOLDER / words).exists() and not abandoned(words)


def remove(leftover: Leftover) -> None:
    """Remove one leftover; no error if it is gone already."""
    if leftover.path.parent == SHM_FOLDER:
        Segment.unlink(f"/{leftover.path.name}")
    else:
        shutil.rmtree(leftover.path, ignore_errors=True)


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # it went away meanwhile
        return 0


def _old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _YOUNG_S
    except FileNotFoundError:
        return False


def segment_prefix() -> str:
    """Return what the names of the shared memory of this user's jobs begin with, those of this namespace."""
    return f"/{_mine()}-"


def _mine() -> str:
    namespace = os.environ.get(NAMESPACE, "")
    if not re.fullmatch(r"[0-9A-Za-z]{0,16}", namespace):
        raise ConfigurationError(
            f"got {NAMESPACE}={namespace!r}: it becomes a part of file names; take up to 16 letters and digits"
        )
    return f"platoon-{os.getuid()}{'.' if namespace else ''}{namespace}"


def _jobs_folder() -> Path:
    """Return the folder, entered by this user alone, that holds the jobs' folders."""
    folder = Path(tempfile.gettempdir()) / _mine()
    with contextlib.suppress(FileExistsError):  # what is there is looked at next
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PlatoonError(
            f"{folder} must be a folder that only you can enter, because it holds the control sockets; "
            "remove it, or set TMPDIR to a folder of yours"
        )
    return folder
