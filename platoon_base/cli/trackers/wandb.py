"""``--tracker wandb``: project, name and mode are those of wandb's own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platoon_base.cli.observers import name_of_worker


class Tracker:
    """Writes to one run of Weights & Biases; see `Tracker` of `platoon_base.cli.observers`."""

    needs = ("wandb", "pip install wandb")

    def __init__(self, name: str, folder: Path) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True)
        self._run: Any = wandb.init(name=os.environ.get("WANDB_NAME", name), settings=settings)
        # Workers and the job count steps of their own, which need not rise together.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._workers: set[int] = set()
        self.place = str(Path(self._run.dir).parent if self._run.offline else self._run.url)

    def configure(self, settings: Mapping[str, float | str]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)

    def log(self, values: Mapping[str, float], step: int, worker: int | None) -> None:
        steps = name_of_worker("step", worker)
        if worker is not None and worker not in self._workers:
            self._workers.add(worker)
            for names in ("*", "system/*"):
                self._run.define_metric(name_of_worker(names, worker), step_metric=steps)
        self._run.log({**{name_of_worker(name, worker): value for name, value in values.items()}, steps: step})

    def close(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
