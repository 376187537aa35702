"""Experiment trackers: a job is one run, that of the leader."""

from __future__ import annotations

import sys

from platoon_base import Worker
from platoon_base.worker import warn_once

__all__ = ["warn_of_own_runs"]


def warn_of_own_runs(worker: Worker) -> None:
    """Warn if a worker that is not the leader has its own W&B or MLflow run without a group."""
    if worker.is_leader:
        return
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    run = getattr(wandb, "run", None)
    if run is not None and not getattr(run, "disabled", False) and not getattr(run, "group", ""):
        warn_once(
            "this worker has a W&B run of its own, besides the leader's; for one run per job write "
            "wandb.init(..., mode=None if is_main() else 'disabled'), or name a group"
        )
    if getattr(mlflow, "active_run", lambda: None)() is not None:
        warn_once(
            "this worker has an MLflow run of its own, besides the leader's; for one run per job write "
            "if is_main(): before mlflow.autolog() or mlflow.start_run()"
        )
