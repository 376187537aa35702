"""The residual of one host as a file beside the checkpoints, with which the host goes on when the job is resumed."""

from __future__ import annotations

import contextlib
import threading
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

__all__ = ["ResidualKeeper"]

Array = np.ndarray[Any, Any]

_LATE = "the one of the checkpoint before is still being written; save less often, or to a faster disk"


class ResidualKeeper:
    """Saves and restores the residual of one host.

    The courier's own thread copies the residual, so that no round changes it meanwhile; another thread writes the copy.
    The launcher sends the order before that to begin the round whose contribution would be packed over it.

    Parameters
    ----------
    world : World
    layout : Layout
        Of the parameters.
    residuals : Residuals
    report : callable
        Takes messages for the launcher; another thread calls it too.
    """

    def __init__(
        self, world: World, layout: Layout, residuals: Residuals, report: Callable[[between.News], None]
    ) -> None:
        self._world, self._layout, self._residuals, self._report = world, layout, residuals, report
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: tuple[between.Keep, list[Array]] | None = None  # what is written after the present one
        self._has_said_late = False

    def keep(self, order: between.Keep) -> None:
        """Copy the residual of a round now, and write it once the one before is written.

        Of several that wait the latest is written.
        """
        try:
            found = self._residuals.after(order.number, order.stamp)
            copies = None if found is None else [array.copy() for array in found]
        except MemoryError:
            self._report(between.Kept(order.key, "there is not enough memory for a copy of it"))
            return
        if copies is None:
            self._report(between.Kept(order.key, "it is that of a later round, or of an overwritten center, by now"))
            return
        late = None
        with self._lock:
            if self._thread is None:
                args = (order, copies)
                self._thread = threading.Thread(target=self._save_all, args=args, name="residual", daemon=True)
                self._thread.start()
            else:
                late, self._waiting = self._waiting, (order, copies)
        if late is not None:
            self._report(between.Kept(late[0].key, "" if self._has_said_late else _LATE))
            self._has_said_late = True

    def _save_all(self, order: between.Keep, arrays: list[Array]) -> None:
        """Write a residual, and what has come to wait meanwhile."""
        self._save(order, arrays)
        while True:
            with self._lock:
                found, self._waiting = self._waiting, None
                if found is None:
                    self._thread = None
                    return
            self._save(*found)

    def _save(self, order: between.Keep, arrays: list[Array]) -> None:
        problem = ""
        try:
            self._write(order, arrays)
        except (OSError, MemoryError) as exc:
            problem = f"it cannot be written to {order.folder}: {exc or type(exc).__name__}. Make room there"
        self._report(between.Kept(order.key, problem))

    def _write(self, order: between.Keep, arrays: Sequence[Array]) -> None:
        """Write the residual, and remove those of this host that belong to no checkpoint, or were not finished."""
        folder, host, hosts = Path(order.folder), self._world.host, self._world.hosts
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{UNFINISHED}-{host}-*.npz"):
            with contextlib.suppress(OSError):
                left.unlink()
        if order.kept is not None:
            prune(folder, order.kept, lambda each: each == host or each >= hosts)
        named = {f"residual/{i}": array for i, array in enumerate(arrays)}
        write_arrays(residual_path(folder, host, order.key), f"{UNFINISHED}-{host}", self._about(), named)

    def _about(self) -> bytes:
        """Return what has to be equal when the residual is restored."""
        specs = [tuple(spec) for spec in residual_layout(self._layout).specs]
        return msgspec.json.encode(
            {"hosts": self._world.hosts, "compression": self._world.compression, "parameters": specs}
        )

    def restore(self, folder: str, key: str) -> None:
        """Begin with a saved residual, or with zero if it cannot be used; an earlier courier may have done it."""
        if self._residuals.restored:
            return
        try:
            self._residuals.restore(self._load(residual_path(folder, self._world.host, key)))
        except ConfigurationError as exc:
            self._residuals.restore(None)
            self._report(between.NotRestored(str(exc)))

    def _load(self, path: Path) -> list[Array]:
        """Read a residual; raises `ConfigurationError` if there is none, or it is not of such a job."""
        try:
            with open_regular(path) as file, np.load(file, allow_pickle=False) as found:
                about = found["about"].tobytes()
                arrays = [found[f"residual/{i}"] for i in range(len(self._layout.specs))]
        except (OSError, MemoryError) as exc:
            raise ConfigurationError(f"{path} cannot be read: {exc or type(exc).__name__}") from exc
        except Exception as exc:  # damaged bytes make zipfile, zlib and NumPy raise all sorts of errors
            raise ConfigurationError(f"{path} is damaged ({type(exc).__name__}: {exc})") from exc
        expected = residual_layout(self._layout).specs
        if about != self._about() or any(
            (array.shape, array.dtype.name) != (tuple(spec.shape), spec.dtype) for array, spec in zip(arrays, expected)
        ):
            raise ConfigurationError(f"{path} is of another number of hosts, another --hosts-compression or model")
        return arrays

    def close(self) -> None:
        """Wait until all is written; the launcher ends this process if that takes too long."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
