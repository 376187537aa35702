"""The files of this user's jobs on this host: folders, names of shared memory, leftovers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Optional

import msgspec

from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.hosts import ONE_HOST, World
from platoon_base.shm.segments import SHM_FOLDER, HiddenName, Segment, abandoned, in_use
from platoon_base.system.environment import JOB, NAMESPACE
from platoon_base.system.folder_lock import FolderLock, is_locked
from platoon_base.system.job_paths import path_of
from platoon_base.system.limits import require_room
from platoon_base.system.own_files import open_own
from platoon_base.system.process import pid_namespace, working_folder

log = logging.getLogger(__name__)

_MAX_DESCRIPTION = 1 << 16
_JOB = re.compile(r"[0-9a-f]{12}")
_DATA_SOCKET = re.compile(r"data-\d+")
# The sun_path of a Unix socket holds 108 bytes with its final zero.
_MAX_ADDRESS = len("ipc://") + 107
_JOB_START_S = 5.0  # A starting job has not locked its folder yet.


class Origin(msgspec.Struct, frozen=True):
    """How a job was started, for observers in other terminals."""

    program: list[str] = []  # Script, or -m and module, and arguments; may be unknown.
    devices: list[str] = []  # One device for each worker.
    log_folder: str = ""  # An absolute path; empty if the workers write no logs.
    began: float = 0.0  # In seconds since the epoch.
    pid: int = 0  # The controller's id in its PID namespace.
    pid_namespace: int = 0
    working_folder: str = ""


class JobFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a job, as JSON in the job's folder, which only its user can enter."""

    size: int  # Number of launched workers.
    job: str = ""  # 12 hexadecimal digits; empty before `create`.
    folder: str = ""  # The reader's path; the writer may have another one.
    center_memory: str = "host"  # "host" or "device"
    checkpoint: str = ""  # The job is resumed from this file.
    port: int = 0  # The TCP port that names the job, see `at_port`; 0 for none.
    origin: Origin = Origin()
    world: World = ONE_HOST  # All hosts; these files belong to one of them.
    takes_turns: bool = False  # See `platoon_base.shm.turns`.
    training: Optional[dict[str, str]] = None  # `training_variables`; None with external workers

    @property
    def address(self) -> str:
        return f"ipc://{path_of(self.folder, 'control')}"

    @property
    def job_state(self) -> str:
        return f"{segment_prefix()}{self.job}-state"

    @property
    def center(self) -> HiddenName:
        return self._hidden("center")

    @property
    def center_place(self) -> tuple[str, str]:
        """The parts of `center`, to send to another process."""
        return str(path_of(self.folder, "memory", what="center")), f"{segment_prefix()}{self.job}-center"

    @property
    def collective(self) -> HiddenName:
        return self._hidden("collective")

    def data(self, name: str) -> HiddenName:
        return self._hidden(f"data-{name}")

    def _hidden(self, what: str) -> HiddenName:
        return HiddenName(path_of(self.folder, "memory", what=what), f"{segment_prefix()}{self.job}-{what}")

    def create(self) -> JobFiles:
        """Make the folder of this new job, which this process controls; return its files.

        Other hosts have the ``job`` name of the first host; it is not used if it exists on this
        machine.
        """
        job = self.job
        if not _JOB.fullmatch(job) or _is_there(job):
            job = secrets.token_hex(6)
        folder = _jobs_folder() / job
        require_room(folder.parent, "a job's description and its socket")
        folder.mkdir(mode=0o700)
        origin = msgspec.structs.replace(
            self.origin,
            began=time.time(),
            pid=os.getpid(),
            pid_namespace=pid_namespace(),
            working_folder=working_folder(),
        )
        files = msgspec.structs.replace(self, job=job, folder=str(folder), origin=origin)
        if len(os.fsencode(files.address)) > _MAX_ADDRESS:
            folder.rmdir()
            raise ConfigurationError(
                f"{folder} is too long a path for a Unix socket: set TMPDIR to a folder with a shorter path"
            )
        files.write()
        return files

    def write(self) -> None:
        """Write the description into the folder, readable by this user alone."""
        path = path_of(self.folder, "description")
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            # Unlike msgspec, json accepts paths of any bytes.
            file.write(json.dumps(msgspec.to_builtins(self)).encode())
        os.replace(unfinished, path)

    def lock(self) -> FolderLock:
        """Lock the folder while the job lives, against `platoon clean` and systemd-tmpfiles."""
        return FolderLock(Path(self.folder), wait=True)

    @classmethod
    def read(cls, folder: str) -> JobFiles:
        """Read the description in a job's folder; ConfigurationError if it is no job of ours."""
        try:
            with open(open_own(path_of(folder, "description"), stat.S_IFREG), "rb") as file:
                found = msgspec.convert(json.loads(file.read(_MAX_DESCRIPTION)), cls)
            if not _JOB.fullmatch(found.job):
                raise msgspec.ValidationError(f"got job {found.job[:100]!r}, not 12 hexadecimal digits")
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
            raise ConfigurationError(
                f"PLATOON_JOB={folder!r} is not the folder of a running job ({exc}): unset it to "
                "run as a single worker, or start the script with `platoon launch`"
            ) from exc
        # The process may change its working folder.
        return msgspec.structs.replace(found, folder=os.path.abspath(folder))

    def require_joinable(self) -> None:
        """Raise `ConfigurationError` if no worker can join this job late."""
        if self.takes_turns:
            raise ConfigurationError(
                "this job was launched with --deterministic, which a worker that joins later "
                "would break: launch it with one more worker, or without the option"
            )

    @property
    def alive(self) -> bool:
        return _alive(self.job)

    @classmethod
    def find(cls, job: str = "") -> JobFiles:
        """Find a running job by name or its beginning, '' for the only job, or by folder."""
        jobs = running()
        exact = [files for files in jobs if job in (files.job, files.folder)]
        found = exact or [files for files in jobs if files.job.startswith(job)]
        if len(found) == 1:
            return found[0]
        if found:
            which = f"got {job!r}, which several job names begin with" if job else "several jobs are running"
            raise ConfigurationError(f"{which}: name one of {', '.join(files.job for files in found)} (`platoon jobs`)")
        raise ConfigurationError(_why_not(job, [files.job for files in jobs]))

    @classmethod
    def at_port(cls, port: int) -> JobFiles:
        """Find the job of this user whose controller has reserved a TCP port of this host."""
        found = [files for files in running() if files.port == port]
        if len(found) == 1:
            return found[0]
        if found:
            jobs = ", ".join(files.folder for files in found)
            raise ConfigurationError(f"several jobs have port {port}: name one of them in {JOB}: {jobs}")
        others = sorted(files.port for files in running() if files.port)
        there = f"controllers have ports {', '.join(map(str, others))}" if others else "you have no running controller"
        raise ConfigurationError(
            f"there is no controller at port {port} of this host, {there}: start the controller "
            "first, as the same user and with the same TMPDIR (jobs are in "
            f"{Path(tempfile.gettempdir(), _mine())}), and pass its port"
        )

    def remove_if_dead(self) -> None:
        """Remove everything of this job unless a process of it lives, such as a late joiner."""
        if not self.alive:
            self.remove()

    def remove(self) -> None:
        for path in SHM_FOLDER.glob(f"{segment_prefix()[1:]}{self.job}-*"):
            Segment.unlink(f"/{path.name}")
        _remove_folder(Path(self.folder))


def data_socket(port: int) -> str:
    """Return the path of the socket of a data channel by its port number; it may have no job."""
    return str(_jobs_folder() / f"data-{port}")


def _why_not(job: str, jobs: list[str]) -> str:
    if not job:
        return "you have no running job: start one with `platoon launch`"
    if _JOB.fullmatch(job) and _is_there(job):
        logs = ""
        with contextlib.suppress(ConfigurationError):
            logs = JobFiles.read(str(_path_of(job))).origin.log_folder
        return (
            f"job {job} is dead: its launcher was killed before it could clean up. `platoon "
            f"clean` removes the rest; the workers' logs stay{f' in {logs}' if logs else ''}"
        )
    owner = _owner_of(job)
    if owner:
        return f"job {job} belongs to user {owner}: you can list, watch and stop only your own jobs"
    import difflib  # Only this error needs it.

    close = difflib.get_close_matches(job, jobs, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ": `platoon jobs` lists them"
    return (
        f"there is no running job {job!r} among your {len(jobs)}{hint}"
        if jobs
        else (f"there is no running job {job!r}: you have no running job")
    )


def _owner_of(job: str) -> str:
    """Return the other user whose job has shared memory by this name, or ''."""
    if not _JOB.fullmatch(job):
        return ""
    for path in SHM_FOLDER.glob(f"platoon-*-{job}-state"):
        with contextlib.suppress(OSError):
            uid = path.lstat().st_uid
            if uid != os.geteuid():
                try:
                    return pwd.getpwuid(uid).pw_name
                except KeyError:
                    return str(uid)
    return ""


def _is_there(job: str) -> bool:
    """Return whether anything of a job of this name is on this machine."""
    state = SHM_FOLDER / f"{segment_prefix().lstrip('/')}{job}-state"
    return os.path.lexists(_path_of(job)) or os.path.lexists(state)


def _path_of(job: str) -> Path:
    return Path(tempfile.gettempdir(), _mine(), job)


class Leftover(NamedTuple):
    """A folder or a segment of a dead job, or the socket of a dead data channel."""

    path: Path
    size_bytes: int


def running() -> list[JobFiles]:
    found = []
    for folder in _own_job_folders():
        if _alive(folder.name):
            with contextlib.suppress(ConfigurationError):  # It is ending, or damaged.
                found.append(JobFiles.read(str(folder)))
    return found


def leftovers() -> list[Leftover]:
    """Find the folders and the shared memory of this user's dead jobs.

    A job lives while its controller holds the lock of its folder, or any process has its shared
    memory open. Both are visible across process and network namespaces; the lock also where the
    shared memory is not visible.
    """
    names = sorted(SHM_FOLDER.glob(f"{segment_prefix().lstrip('/')}*"))
    segments = [path for path in names if abandoned(path.name) and _old(path) and not _alive(_job_of(path))]
    found = [Leftover(path, _size_bytes(path)) for path in segments]
    for folder in _own_job_folders():
        if _old(folder) and not _alive(folder.name):
            found.append(Leftover(folder, sum(_size_bytes(path) for path in folder.glob("*"))))
    sockets = [path for path in _entries() if _DATA_SOCKET.fullmatch(path.name) and _old(path)]
    return found + [Leftover(path, 0) for path in sockets if _is_dead_socket(path)]


def _is_dead_socket(path: Path) -> bool:
    """Return whether this is a socket of this user without a listener."""
    try:
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.setblocking(False)
            caller.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:  # Its queue is full, or it has ended.
        pass
    return False


def _own_job_folders() -> list[Path]:
    return [entry for entry in _entries() if _JOB.fullmatch(entry.name) and _is_own_folder(entry)]


def _entries() -> list[Path]:
    try:
        return sorted(_jobs_folder(create=False).iterdir())
    except FileNotFoundError:
        return []
    except _ForeignFolderError as exc:
        log.warning("%s", exc)
        return []


def _is_own_folder(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:  # It was removed meanwhile.
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _alive(job: str) -> bool:
    """Return whether a job lives: its folder is locked, or the memory of its state is in use."""
    return is_locked(_path_of(job)) or in_use(f"{segment_prefix()}{job}-state")


def _job_of(segment: Path) -> str:
    return segment.name.removeprefix(segment_prefix().lstrip("/")).partition("-")[0]


def remove(leftover: Leftover) -> bool:
    """Remove one leftover, unless its job lives; return whether it is gone."""
    path = leftover.path
    if path.parent == SHM_FOLDER:
        if abandoned(path.name) and not _alive(_job_of(path)):
            Segment.unlink(f"/{path.name}")
    elif _DATA_SOCKET.fullmatch(path.name):
        if _is_dead_socket(path):
            path.unlink(missing_ok=True)
    elif not _alive(path.name):
        _remove_folder(path)
    return not os.path.lexists(path)


def _remove_folder(path: Path) -> None:
    if _is_own_folder(path):  # rmtree follows no links.
        shutil.rmtree(path, ignore_errors=True)


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # It was removed meanwhile.
        return 0


def _old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _JOB_START_S
    except OSError:
        return False


def segment_prefix() -> str:
    """Return the prefix of shared memory names of this user's jobs, in this namespace."""
    return f"/{_mine()}-"


def _mine() -> str:
    namespace = os.environ.get(NAMESPACE, "")
    if not re.fullmatch(r"[0-9A-Za-z]{0,16}", namespace):
        raise ConfigurationError(
            f"got {NAMESPACE}={namespace!r}, which becomes part of file names: use up to 16 letters and digits"
        )
    return f"platoon-{os.getuid()}{'.' if namespace else ''}{namespace}"


class _ForeignFolderError(PlatoonError):
    """The folder of the jobs is a file, or belongs to another user."""


def _jobs_folder(create: bool = True) -> Path:
    """Return the folder that holds the jobs' folders; only this user can enter it."""
    folder = Path(tempfile.gettempdir()) / _mine()
    if create:
        with contextlib.suppress(FileExistsError):  # The checks follow.
            folder.mkdir(mode=0o700)
    status = folder.lstat()
    foreign = not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid()
    if foreign or status.st_mode & 0o077:
        raise (_ForeignFolderError if foreign else PlatoonError)(
            f"{folder} holds the control sockets, so only you may have access to it: remove it, "
            "or set TMPDIR to a folder of yours"
        )
    return folder
