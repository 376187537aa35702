"""``--tracker aim``: the repository is that of ``AIM_REPO``, or the working directory's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """Writes to one run of Aim; see `Tracker` of `platoon_base.cli.observers`."""

    needs = ("aim", "pip install aim")

    def __init__(self, name: str, folder: Path) -> None:
        import aim

        repo = os.environ.get("AIM_REPO", ".")
        options = {"system_tracking_interval": None, "capture_terminal_logs": False}
        self._run: Any = aim.Run(repo=repo, experiment=name, **options)
        self.place = f"run {self._run.hash} in {repo}"

    def configure(self, settings: Mapping[str, float | str]) -> None:
        for name, value in settings.items():
            self._run[name] = value

    def log(self, values: Mapping[str, float], step: int, worker: int | None) -> None:
        context = {} if worker is None else {"worker": worker}
        for name, value in values.items():
            self._run.track(value, name=name, step=step, context=context)

    def close(self, succeeded: bool) -> None:
        if not succeeded:
            self._run["failed"] = True
        self._run.close()
