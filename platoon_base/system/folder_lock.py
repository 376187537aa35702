"""A lock on a folder; the kernel releases it when its holder ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from platoon_base.system.own_files import SAFE_FLAGS, disown, open_own, own

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
# Such as Lustre without flock, or NFS without its daemon.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_UNLOCKED = (
    "%s is on a file system without locks (%s), so a second job could use it at the same time "
    "unnoticed. Use a separate folder for each job"
)


class FolderLock:
    """The exclusive lock on a folder; raises BlockingIOError if it is held, unless ``wait`` is set.

    It locks a file that only this user can open: other users can lock files that they can read. NFS
    passes it to its server, so other hosts see it. systemd-tmpfiles respects a lock on the folder
    itself, so a private folder is locked too. Without locks in the file system it only warns.
    """

    def __init__(self, folder: Path, wait: bool = False) -> None:
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        self.fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._file = -1
        own(self.fd)
        try:
            if _is_private(self.fd):
                fcntl.flock(self.fd, how)
            # NFS grants an exclusive lock only to writers, and not on folders.
            self._file = os.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o600, dir_fd=self.fd)
            own(self._file)
            # The file in a copied folder may be readable by others.
            with contextlib.suppress(OSError):
                os.fchmod(self._file, 0o600)
            fcntl.flock(self._file, how)
        except BaseException as exc:
            if isinstance(exc, OSError) and exc.errno in _NO_LOCKS:
                log.warning(_UNLOCKED, folder, exc.strerror)
                return
            self.close()
            raise

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        for fd in (self._file, self.fd):
            if fd >= 0:
                disown(fd)
                os.close(fd)
        self._file = self.fd = -1


def _is_private(fd: int) -> bool:
    return not os.fstat(fd).st_mode & (stat.S_IRGRP | stat.S_IROTH)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; False if it is not this user's."""
    for path, kind in ((folder, stat.S_IFDIR), (folder / LOCK_FILE, stat.S_IFREG)):
        try:
            fd = open_own(path, kind)
        except OSError:
            return False
        try:
            if _is_private(fd):  # Otherwise the lock may be another user's.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # A shared lock allows concurrent checks.
        except BlockingIOError:
            return True
        except OSError:  # The file system has no locks.
            return False
        finally:
            os.close(fd)
    return False


def locks_stay_on_this_host(path: Path, mounts: str | None = None) -> str:
    """Return why another host does not see locks in a folder, or ''."""
    status = path.stat()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        lines = (mounts or Path("/proc/self/mountinfo").read_text(errors="replace")).splitlines()
    except OSError:
        return ""
    for line in reversed(lines):  # The latest mount hides the others.
        left, _, right = line.partition(" - ")
        if left.split()[2:3] == [device] and len(right.split()) >= 3:
            kind, _, options = right.split()[:3]
            return _kept_from_others(kind, options.split(","))
    return ""


def _kept_from_others(kind: str, options: list[str]) -> str:
    """Return why a shared file system with these mount options keeps locks local, or ''."""
    if kind in ("nfs", "nfs4"):
        local = [word for word in options if word in ("nolock", "local_lock=all", "local_lock=flock")]
        return f"{kind} with {local[-1]}" if local else ""
    if kind == "lustre":
        return "lustre with localflock" if "localflock" in options else ""
    if kind in ("cifs", "smb3"):
        return f"{kind} with nobrl" if "nobrl" in options else ""
    # These pass on locks or not, depending on the server.
    return kind if kind in ("9p", "virtiofs", "afs", "beegfs") or kind.startswith("fuse.") else ""
