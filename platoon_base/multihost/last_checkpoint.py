"""The checkpoint that another host writes if host 0, which normally does, is lost."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

from platoon_base.checkpoints.files import Checkpoint, CheckpointFolder
from platoon_base.checkpoints.writer import Readable
from platoon_base.errors import PlatoonError
from platoon_base.job import backends
from platoon_base.job.files import JobFiles
from platoon_base.multihost.messages import SavedState
from platoon_base.shm.job_state import JobState

log = logging.getLogger(__name__)


class LastCheckpoint:
    """Keeps host 0's latest checkpoint without its arrays, and this host's center open."""

    def __init__(self, files: JobFiles, job_state: JobState) -> None:
        self._files = files
        self._job_state = job_state
        self._latest: SavedState | None = None
        self._center: Readable | None = None

    def note(self, latest: SavedState) -> None:
        self._latest = latest
        if latest.about.parameters and self._center is None:
            with contextlib.suppress(OSError, PlatoonError):  # There is no center here yet.
                self._center = backends.watch_center(self._files, latest.about.layout)

    def write(self) -> None:
        """Write a checkpoint in place of host 0, after all workers of this host have ended."""
        latest = self._latest
        if latest is None:
            return
        if self._center is None:
            self.note(latest)
        if self._center is None:
            log.warning("this host writes no checkpoint, because it has no center. Resume from %s", latest.folder)
            return
        positions = {rank: self._job_state.position(rank) for rank in latest.about.positions}
        about = msgspec.structs.replace(latest.about, positions=positions)
        folder = Path(latest.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            values, states = self._center.snapshot(may_wait=True)
            path = CheckpointFolder(folder).save(Checkpoint.of(about, about.layout, values, states))
        except (OSError, PlatoonError) as exc:
            log.warning(
                "cannot save the center of this host in %s (another host of the job may be "
"saving its own there): %s",
                folder, exc,
            )  # fmt: skip
        else:
            log.warning("this host has saved its center in %s: continue from there with --resume %s", path, folder)

    def close(self) -> None:
        if self._center is not None:
            self._center.close()
