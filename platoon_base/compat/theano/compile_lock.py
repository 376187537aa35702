"""Repair of Theano's compile lock: a lock of the kernel in front of it.

1. Waiters poll every 5 to 10 s (``gof/compilelock.py:216-273``), so N starting processes mostly
sleep. 2. ``lock_ctx`` (``:38-43``) keeps the lock if its body raises. 3. ``Unlocker.unlock`` runs
again at exit (``:87``), and may remove another process's new lock.

With ``flock`` waiters continue within milliseconds, and the kernel releases the lock of a process
that is killed. Theano's directory lock below it keeps out processes without this repair; if its
owner has died, it is acquired immediately. ``lock_ctx`` always releases, and only a holder unlocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from platoon_base.system.own_files import disown, own
from platoon_base.timeouts import SHORT_POLL_S, timeout

log = logging.getLogger(__name__)


class CompileLockTimeoutError(TimeoutError):
    """Another process held the compile lock past the deadline."""


class FileLock:
    """Exclusive ``flock`` on a file, which the kernel releases when the holder dies.

    After `acquire`, ``abandoned_by`` is the process id of a holder that died with the lock, or
    empty.
    """

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        self.path = path
        self.timeout_s = timeout("compile") if timeout_s is None else timeout_s
        self.abandoned_by = ""
        # Opened at each acquisition: a forked copy of a descriptor would share the lock.
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Acquire the lock within ``timeout_s``; OSError if the file system has no such locks."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self.timeout_s
        while self._descriptor is None:
            # Another user with read access could lock the file. Only a shared cache permits that.
            mode = 0o666 if self.path.parent.stat().st_mode & 0o022 else 0o600
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
            try:
                self._wait(descriptor, deadline)
                if self._names(descriptor):
                    self._descriptor = descriptor
                    own(descriptor)
            finally:
                if self._descriptor is None:
                    os.close(descriptor)
        self.abandoned_by = _holder(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, b"%d\n" % os.getpid())

    def release(self) -> None:
        if self._descriptor is None:
            return
        import fcntl

        descriptor, self._descriptor = self._descriptor, None
        os.ftruncate(descriptor, 0)
        # Closing is not enough while a child of C code has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        disown(descriptor)
        os.close(descriptor)

    def _wait(self, descriptor: int, deadline: float) -> None:
        # Imported here, as Keras scripts apply the shims on systems without it.
        import fcntl

        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CompileLockTimeoutError(self._complaint(descriptor)) from None
                time.sleep(SHORT_POLL_S)

    def _names(self, descriptor: int) -> bool:
        """Return whether the path is still the locked file; the directory may have been cleared."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _complaint(self, descriptor: int) -> str:
        holder = _holder(descriptor) or "unknown"
        return (
            f"process {holder} has held Theano's compile lock {self.path} for more than "
            f"{self.timeout_s:g} s: check what it does, and end it if it hangs (kill {holder}), "
            "which releases the lock"
        )


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode().strip()


def _signed_by(tmp_dir: str, pid: str, host: str) -> bool:
    try:
        owner = Path(tmp_dir, "lock").read_text().strip().split("_")
    except OSError:
        return False
    return owner[0] == pid and owner[-1] == host


def install(module: ModuleType, timeout_s: float | None = None) -> None:
    """Put the kernel's lock in front of the directory lock of ``theano.gof.compilelock``."""
    compilelock: Any = module
    if getattr(compilelock.get_lock, "n_lock", 0):
        log.warning("Theano's compile lock is held, so it is not replaced: import the plugin before theano")
        return
    lock, unlock = compilelock.lock, compilelock.Unlocker.unlock
    get_lock, release_lock = compilelock.get_lock, compilelock.release_lock
    # For each lock directory, its holder's process id and kernel lock.
    held: dict[str, tuple[int, FileLock]] = {}

    def lock_both(tmp_dir: str, *args: Any, **kwargs: Any) -> None:
        compile_dir = Path(tmp_dir).parent
        file_lock = FileLock(compile_dir.with_name(compile_dir.name + ".flock"), timeout_s)
        try:
            # A caller with a deadline of its own intends to break Theano's lock.
            if not args and not kwargs:
                file_lock.acquire()
        except CompileLockTimeoutError:
            raise
        except OSError as exc:
            log.warning("no kernel lock on %s (%s): using Theano's own lock, which polls", file_lock.path, exc)
        try:
            if file_lock.abandoned_by and _signed_by(tmp_dir, file_lock.abandoned_by, compilelock.hostname):
                # Theano would wait while the process is a zombie, or while another one has its id.
                unlock(compilelock.Unlocker(tmp_dir), True)
            lock(tmp_dir, *args, **kwargs)
        except BaseException:
            file_lock.release()
            raise
        held[tmp_dir] = (os.getpid(), file_lock)

    def unlock_both(self: Any, force: bool = False) -> None:
        # Theano breaks the lock of a dead process; the kernel lock stays.
        if force:
            unlock(self, force)
            return
        pid, file_lock = held.get(self.tmp_dir, (None, None))
        if file_lock is None or pid != os.getpid():
            return
        del held[self.tmp_dir]
        try:
            unlock(self, force)
        finally:
            file_lock.release()

    @contextlib.contextmanager
    def lock_ctx(lock_dir: str | None = None, keep_lock: bool = False, **kwargs: Any) -> Iterator[None]:
        get_lock(lock_dir=lock_dir, **kwargs)
        try:
            yield
        except BaseException:
            keep_lock = False
            raise
        finally:
            if not keep_lock:
                release_lock()

    compilelock.lock = lock_both
    compilelock.Unlocker.unlock = unlock_both
    compilelock.lock_ctx = lock_ctx
