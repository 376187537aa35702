"""Named posix shared memory with locks by byte.

Locks are open-file-description locks on bytes of the segment. The kernel releases them however
their holder dies. A child forked by Python keeps none: it uses another description of the same
file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import mmap
import os
import stat
import struct
from pathlib import Path
from typing import Any, Union

from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.system.limits import available_memory
from platoon_base.system.own_files import disown, open_own, own

with contextlib.suppress(ImportError):  # On other systems a script runs alone, without segments.
    import fcntl

    import posix_ipc

Name = Union[str, "HiddenName"]

# Attempts with random names, or with a name that is being replaced.
_ATTEMPTS = 8
_RANDOM_BYTES = 8
SHM_FOLDER = Path("/dev/shm")
_SMALL_BYTES = 1 << 26  # Smaller segments are reserved without a check of free memory.
_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)  # Named since Python 3.10.


@functools.lru_cache(maxsize=1 << 16)
def _flock(kind: int, byte: int, count: int = 1) -> bytes:
    """Build a ``struct flock`` of 64-bit Linux; a ``count`` of 0 means all bytes from ``byte``."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, count, 0)


class Segment:
    """A shared-memory segment of mode 0600, mapped into this process by `create` or `attach`."""

    def __init__(self, name: str, fd: int, size_bytes: int, populate: bool = True, writable: bool = True) -> None:
        self.name = name
        # A file object: a plain number may be reused for another file after another thread's close.
        self._file = io.FileIO(fd, closefd=False)
        self._pid = os.getpid()
        # The mapping duplicates its descriptor, and forked children inherit the duplicate. It must
        # not hold the locks, so the mapping gets a second file description.
        self._twin = _open_again(name, fd)
        try:
            self._buffer: mmap.mmap | None = mmap.mmap(
                self._twin,
                size_bytes,
                flags=mmap.MAP_SHARED | (_POPULATE if populate else 0),
                prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0),
            )
        except BaseException:
            os.close(self._twin)
            raise
        own(fd, self._twin)

    @classmethod
    def create(cls, name: Name, size_bytes: int) -> Segment:
        """Create a segment of zeros, replacing an old one; reserve its pages or raise."""
        before = name if isinstance(name, str) else name.current()
        if isinstance(name, str):
            cls.unlink(name)
        fd, made = _create(name)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)  # First: without this lock it looks abandoned.
            _reserve(fd, 0, size_bytes)
            segment = cls(made, fd, size_bytes)
        except BaseException:
            os.close(fd)
            posix_ipc.unlink_shared_memory(made)
            raise
        if not isinstance(name, str):
            segment._publish(name, before)
        return segment

    def _publish(self, name: HiddenName, before: str) -> None:
        """Publish this segment under the job's name for it, and remove the earlier one."""
        try:
            name.point_to(self.name)
        except OSError as exc:
            self.close()
            self.unlink(self.name)
            text = f"cannot write to the job's folder ({exc}): was it removed?"
            raise ConfigurationError(text) from exc
        if before:
            self.unlink(before)

    @classmethod
    def attach(cls, name: Name, populate: bool = True, writable: bool = True) -> Segment:
        """Map a segment of another process of this user; ``populate`` maps all pages now."""
        fd, found = _open(name)
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            os.close(fd)
            raise ConfigurationError(f"refused shared memory {found}: another user owns it or may access it")
        fcntl.flock(fd, fcntl.LOCK_SH)
        return cls(found, fd, status.st_size, populate, writable)

    def grow(self, size_bytes: int) -> None:
        """Extend the memory with zeros; later handles map all of it, this one keeps its mapping."""
        fd = self._file.fileno()
        before = os.fstat(fd).st_size
        if size_bytes > before:
            _reserve(fd, before, size_bytes - before)

    @property
    def buffer(self) -> mmap.mmap:
        """The mapped memory; arrays of `platoon_base.layout.array_on` keep it mapped."""
        if self._buffer is None:
            raise self._closed_error()
        return self._buffer

    def fileno(self) -> int:
        """Return a descriptor for queries about locks, valid until `close`; it holds no lock."""
        self._file.fileno()  # Raises after `close`.
        return self._twin

    def try_lock(self, byte: int) -> bool:
        """Try to acquire the lock of a byte without waiting; False if another handle holds it."""
        try:
            taken = self._lock_call(fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte))
        except BlockingIOError:
            return False
        if taken is None:
            raise self._closed_error()
        return True

    def unlock(self, byte: int, count: int = 1) -> None:
        """Release the locks of ``count`` bytes that this handle holds."""
        self._lock_call(fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte, count))

    def locked(self, byte: int) -> bool:
        """Return whether another handle holds the lock of a byte; False after `close`."""
        answer = self._lock_call(fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, byte))
        return answer is not None and bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)

    def _lock_call(self, command: int, lock: bytes) -> bytes | None:
        """Call fcntl with a lock; None after `close`, possibly by another thread."""
        try:
            answer: bytes = fcntl.fcntl(self._file, command, lock)
            return answer
        except ValueError:  # I/O operation on closed file.
            return None
        except OSError as exc:
            if exc.errno == errno.EBADF and self.closed:  # Closed after fcntl had read the number.
                return None
            raise

    def _closed_error(self) -> ConfigurationError:
        return ConfigurationError(f"shared memory {self.name} is closed: it cannot be used after close()")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """Release the locks of this handle, and unmap the memory once no array uses it."""
        if self.closed:
            return
        fd = self._file.fileno()
        self._file.close()
        if os.getpid() != self._pid:
            return  # A forked child shares the locks with its parent.
        buffer, self._buffer = self.buffer, None
        with contextlib.suppress(BufferError):  # Arrays still use it: the last one unmaps it.
            buffer.close()
        # Release explicitly: a child forked without Python's hooks has a duplicate of fd and its
        # locks.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))
        fcntl.flock(fd, fcntl.LOCK_UN)
        disown(fd)
        os.close(fd)
        os.close(self._twin)

    @staticmethod
    def unlink(name: Name) -> None:
        """Remove the name if it exists; the memory is freed when the last process closes it."""
        found = name if isinstance(name, str) else name.current()
        if found:
            # It may be removed already, belong to another user, or be on a read-only file system.
            with contextlib.suppress(posix_ipc.Error, OSError):
                posix_ipc.unlink_shared_memory(found)
        if not isinstance(name, str):
            name.forget()

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def _create(name: Name) -> tuple[int, str]:
    """Create an empty segment under a new name; return its file descriptor and its name."""
    tried = name if isinstance(name, str) else name.fresh()
    for _ in range(1 if isinstance(name, str) else _ATTEMPTS):
        try:
            return posix_ipc.SharedMemory(tried, posix_ipc.O_CREX, mode=0o600, size=0).fd, tried
        except posix_ipc.ExistentialError as exc:
            if not SHM_FOLDER.is_dir():
                raise BackendUnavailableError(_no_shared_memory(exc)) from exc
            tried = name if isinstance(name, str) else name.fresh()
        except (OSError, posix_ipc.Error) as exc:
            raise BackendUnavailableError(_no_shared_memory(exc)) from exc
    raise ConfigurationError(
        f"shared memory {tried} belongs to another user, who took the name first: see `ls -l "
        f"{SHM_FOLDER}`, and start again"
    )


def _open(name: Name) -> tuple[int, str]:
    """Open a segment; return its file descriptor and its name."""
    found = str(name)
    for _ in range(_ATTEMPTS):
        try:
            return posix_ipc.SharedMemory(found).fd, found
        except (OSError, posix_ipc.Error) as exc:
            if str(name) == found:  # Otherwise it was replaced meanwhile.
                raise ConfigurationError(_not_found(found, exc)) from exc
        found = str(name)
    raise ConfigurationError(_not_found(found, RuntimeError("it is being replaced again and again")))


def _open_again(name: str, fd: int) -> int:
    """Open a second file description of a segment, which has none of the first one's locks."""
    try:
        twin: int = posix_ipc.SharedMemory(name).fd
    except (OSError, posix_ipc.Error) as exc:
        raise ConfigurationError(_not_found(name, exc)) from exc
    if os.path.samestat(os.fstat(twin), os.fstat(fd)):
        return twin
    os.close(twin)
    raise ConfigurationError(f"shared memory {name} was replaced while it was being opened: its job has ended")


def _reserve(fd: int, start: int, size_bytes: int) -> None:
    """Reserve the pages of a range of bytes: later accesses cannot fail."""
    # Without this check the kernel would allocate all free pages, and then kill processes.
    if size_bytes > _SMALL_BYTES and size_bytes > _free_bytes():
        raise _out_of_memory_text(size_bytes)
    try:
        os.posix_fallocate(fd, start, size_bytes)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise _out_of_memory_text(size_bytes) from exc


def _free_bytes() -> int:
    """Return the bytes that can be allocated: free both in /dev/shm and in the machine's memory."""
    room = os.statvfs(SHM_FOLDER)
    return min(room.f_bavail * room.f_frsize, available_memory())


def _out_of_memory_text(size_bytes: int) -> BackendUnavailableError:
    room = os.statvfs(SHM_FOLDER)
    return BackendUnavailableError(
        f"needs {size_bytes / 1e6:.0f} MB of shared memory, {SHM_FOLDER} has "
        f"{room.f_bavail * room.f_frsize / 1e6:.0f} MB free, and the machine {available_memory() / 1e6:.0f} MB of "
        "memory: enlarge it (mount -o remount,size=...; docker run --shm-size=...), remove leftovers with "
        "`platoon clean`, or share less"
    )


def _no_shared_memory(why: Exception) -> str:
    return (
        f"cannot create shared memory in {SHM_FOLDER} ({why}): mount a tmpfs there that you can "
        f"write to (mount -t tmpfs tmpfs {SHM_FOLDER}; docker run --shm-size=...), and see "
        "`platoon doctor`"
    )


def _not_found(name: str, why: Exception) -> str:
    return (
        f"cannot open shared memory {name} ({why}). Either its job has ended; or its names were "
        f"removed from {SHM_FOLDER}, for example by systemd-logind when you logged out (set "
        "RemoveIPC=no in /etc/systemd/logind.conf, or run `loginctl enable-linger`); or the job "
        "is in a container with another /dev/shm (share it, for example with docker run --ipc). "
        "Running workers continue and are saved, but none can join the job or be restarted"
    )


def abandoned(name: Name) -> bool:
    """Return whether this user has such a segment and no process has it open (`flock`)."""
    return _has_users(name) is False


def in_use(name: Name) -> bool:
    """Return whether this user has such a segment and a process has it open."""
    return _has_users(name) is True


def _has_users(name: Name) -> bool | None:
    """Return whether a process has a segment open; None if this user has none of that name."""
    try:
        fd = open_own(SHM_FOLDER / str(name).lstrip("/"), stat.S_IFREG)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class HiddenName:
    """Unpredictable name of a segment, stored in a link in a folder that only this user can enter.

    All users see the names in /dev/shm: another user could create a predictable name first.
    """

    def __init__(self, link: Path, prefix: str) -> None:
        self._link = link
        self._prefix = prefix

    def __str__(self) -> str:
        return self.current() or self._prefix

    def current(self) -> str:
        """Return the name of the segment; empty while there is none."""
        try:
            return os.readlink(self._link)
        except OSError:
            return ""

    def fresh(self) -> str:
        return f"{self._prefix}-{os.urandom(_RANDOM_BYTES).hex()}"

    def point_to(self, name: str) -> None:
        unfinished = self._link.with_name(f"{self._link.name}.{os.urandom(_RANDOM_BYTES).hex()}")
        os.symlink(name, unfinished)
        os.replace(unfinished, self._link)

    def forget(self) -> None:
        with contextlib.suppress(OSError):  # There is no link.
            self._link.unlink()
