"""Mirror of a center on devices, from which the controller reads values and states on the host."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from platoon_base.centers.device_directory import FINAL, DeviceDirectory
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import Layout
from platoon_base.timeouts import SHORT_POLL_S

__all__ = ["DirectoryMirror"]

Array = np.ndarray[Any, Any]

# Workers copy their partitions when they synchronize, after the work queued on their devices.
_SETTLE_S, _MIRROR_S = 0.5, 10.0


class DirectoryMirror:
    """The controller's handle of a center on devices, see `Readable`; owns the directory."""

    def __init__(self, directory: DeviceDirectory, layout: Layout) -> None:
        self._directory = directory
        self._layout = layout

    def snapshot(self, may_wait: bool) -> tuple[list[Array], list[list[Array]]]:
        """Copy a new mirror, or the last one if all owners have left; workers continue."""
        if not self._directory.has_mirror(FINAL):
            self._await_mirror(may_wait)
        values, *states = (self._layout.empty() for _ in range(1 + self._directory.tiling.center_states))
        for buffer, arrays in enumerate([values, *states]):
            self._directory.read_buffer(buffer, arrays)
        return values, states

    def _await_mirror(self, may_wait: bool) -> None:
        if not may_wait:
            raise CollectiveTimeoutError(
                "a center on devices is mirrored on the host by workers that do not wait themselves"
            )
        time.sleep(_SETTLE_S)
        number, deadline = self._directory.want_mirror(), time.monotonic() + _MIRROR_S
        while not self._directory.has_mirror(number):
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(f"no worker on a device has synchronized for {_MIRROR_S:g} s")
            time.sleep(SHORT_POLL_S)

    def close(self) -> None:
        if not self._directory.closed:
            self._directory.close()
