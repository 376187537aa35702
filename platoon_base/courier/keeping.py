"""The residual of one host as a file beside the checkpoints, for a resumed job."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from platoon_base.checkpoints.array_files import write_arrays
from platoon_base.checkpoints.residuals import UNFINISHED, prune, residual_path
from platoon_base.compression.packing import Residuals, residual_layout
from platoon_base.courier import messages as between
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.world import World
from platoon_base.layout import Layout
from platoon_base.system.regular_files import open_regular

__all__ = ["ResidualKeeper", "Restoring"]

Array = np.ndarray[Any, Any]

_RESTORE_TIMEOUT_S = 100.0  # The workers of all hosts wait meanwhile, by default for 300 s.
_LATE = "the one of the checkpoint before is still being written; save less often, or to a faster disk"


class ResidualKeeper:
    """Saves and restores the residual of one host.

    The courier's own thread copies the residual, so no round changes it meanwhile; another thread
    writes the copy. The launcher sends this order before the round that would overwrite the
    residual. ``report`` is called in both threads.
    """

    def __init__(
        self, world: World, layout: Layout, residuals: Residuals, report: Callable[[between.News], None]
    ) -> None:
        self._world, self._layout, self._residuals, self._report = world, layout, residuals, report
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: tuple[between.Keep, list[Array]] | None = None  # The next residual to write.
        self._has_said_late = False

    def keep(self, order: between.Keep) -> None:
        """Copy the residual of a round now, and write it after the one before."""
        # Only the latest of several waiting copies is written: there are at most two.
        problem = ""
        try:
            found = self._residuals.after(order.number, order.stamp)
            if found is None:
                problem = "it is that of a later round, or of an overwritten center, by now, or was packed in part"
            else:
                self._drop_waiting()
                self._begin_to_save(order, [array.copy() for array in found])
        except MemoryError:
            problem = "there is not enough memory for a copy of it"
        except RuntimeError as exc:
            problem = f"no thread can be started that would write it: {exc}"
        if problem:
            self._report(between.Kept(order.key, problem))

    def _drop_waiting(self) -> None:
        with self._lock:
            late, self._waiting = self._waiting, None
        if late is not None:
            self._report(between.Kept(late[0].key, "" if self._has_said_late else _LATE))
            self._has_said_late = True

    def _begin_to_save(self, order: between.Keep, copies: list[Array]) -> None:
        with self._lock:
            self._waiting = order, copies
            if self._thread is None:
                thread = threading.Thread(target=self._save_all, name="residual", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    self._waiting = None
                    raise
                self._thread = thread

    def _save_all(self) -> None:
        while True:
            with self._lock:
                found, self._waiting = self._waiting, None
                if found is None:
                    self._thread = None
                    return
            self._save(*found)
            del found  # Release its memory before the next copy.

    def _save(self, order: between.Keep, arrays: list[Array]) -> None:
        problem = ""
        try:
            self._write(order, arrays)
        except Exception as exc:  # Any error: the next residual must still be written.
            problem = f"it cannot be written to {order.folder}: {exc or type(exc).__name__}. Make room there"
        self._report(between.Kept(order.key, problem))

    def _write(self, order: between.Keep, arrays: Sequence[Array]) -> None:
        """Write the residual, and remove unfinished ones and those without a checkpoint."""
        folder, host, hosts = Path(order.folder), self._world.host, self._world.hosts
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{UNFINISHED}-{host}-*.npz"):
            with contextlib.suppress(OSError):
                left.unlink()
        if order.kept is not None:
            prune(folder, order.kept.__contains__, lambda each: each == host or each >= hosts)
        named = {f"residual/{i}": array for i, array in enumerate(arrays)}
        write_arrays(residual_path(folder, host, order.key), f"{UNFINISHED}-{host}", self._about(order.key), named)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)  # This makes the file's name durable.
        finally:
            os.close(fd)

    def _about(self, key: str) -> bytes:
        """Return the data that must be equal when the residual is restored."""
        world, specs = self._world, [tuple(spec) for spec in residual_layout(self._layout).specs]
        about = {"key": key, "host": world.host, "hosts": world.hosts, "compression": world.compression}
        return msgspec.json.encode({**about, "parameters": specs})

    def restore(self, folder: str, key: str) -> Restoring:
        load = functools.partial(self._load, folder, key)
        return Restoring(self._residuals, load, self._report, _RESTORE_TIMEOUT_S)

    def _load(self, folder: str, key: str) -> list[Array]:
        """Read a residual; raises `ConfigurationError` if it is missing or from another job."""
        path = residual_path(folder, self._world.host, key)
        try:
            with open_regular(path) as file, np.load(file, allow_pickle=False) as found:
                about = found["about"].tobytes()
                arrays = [found[f"residual/{i}"] for i in range(len(self._layout.specs))]
        except (OSError, MemoryError) as exc:
            raise ConfigurationError(f"{path} cannot be read: {exc or type(exc).__name__}") from exc
        # Damaged bytes make zipfile, zlib and NumPy raise many kinds of errors.
        except Exception as exc:
            raise ConfigurationError(f"{path} is damaged ({type(exc).__name__}: {exc})") from exc
        expected = residual_layout(self._layout).specs
        if about != self._about(key) or any(
            (array.shape, array.dtype.name) != (tuple(spec.shape), spec.dtype) for array, spec in zip(arrays, expected)
        ):
            raise ConfigurationError(
                f"{path} is of another checkpoint, host, number of hosts, --hosts-compression or model"
            )
        return arrays

    def close(self) -> None:
        """Wait until all is written; the launcher ends this process if that takes too long."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()


class Restoring:
    """Reads a saved residual in a thread, while the courier continues to read its orders."""

    def __init__(
        self,
        residuals: Residuals,
        load: Callable[[], list[Array]],
        report: Callable[[between.News], None],
        timeout_s: float,
    ) -> None:
        self._residuals, self._load, self._report, self._timeout_s = residuals, load, report, timeout_s
        self._until = time.monotonic() + timeout_s
        self._found: list[Array] | None = None
        self._problem = ""
        self._thread = threading.Thread(target=self._read, name="restoring", daemon=True)
        if not residuals.restored:
            self._thread.start()

    def _read(self) -> None:
        try:
            self._found = self._load()
        except Exception as exc:  # Any error: the courier begins with zeros.
            self._problem = str(exc) or type(exc).__name__

    def step(self) -> bool:
        """Return whether the residuals are ready; call it until they are."""
        if self._residuals.restored:
            return True
        if self._thread.is_alive():
            if time.monotonic() < self._until:
                return False
            problem = f"it is not read within {self._timeout_s:g} s. Check that disk"
        else:
            problem = self._problem
        self._residuals.restore(None if problem else self._found)
        if problem:
            self._report(between.NotRestored(problem))
        return True
