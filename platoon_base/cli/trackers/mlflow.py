"""``--tracker mlflow``: server, experiment and run are those of MLflow's own variables."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platoon_base.cli.observers import name_of_worker

_CHARACTERS = 6000  # MLflow's limit of a parameter.
_REFUSED = re.compile(r"[^\w\-./ ]")  # Characters that MLflow does not take in names.


class Tracker:
    """Writes to one run of MLflow; see `Tracker` of `platoon_base.cli.observers`."""

    needs = ("mlflow", "pip install mlflow")

    def __init__(self, name: str, folder: Path) -> None:
        import mlflow

        # The functions of the module `mlflow` keep the current run for each thread.
        self._client: Any = mlflow.MlflowClient()
        self._id = os.environ.get("MLFLOW_RUN_ID") or self._new_run(name)
        self._client.update_run(self._id, "RUNNING")
        self._known = dict(self._client.get_run(self._id).data.params)
        self.place = f"run {self._id} in {mlflow.get_tracking_uri()}"

    def _new_run(self, name: str) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if experiment is None:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            found = self._client.get_experiment_by_name(title)
            experiment = self._client.create_experiment(title) if found is None else found.experiment_id
        run: str = self._client.create_run(experiment, run_name=name).info.run_id
        return run

    def configure(self, settings: Mapping[str, float | str]) -> None:
        from mlflow.entities import Param

        # The parameters of a run cannot be changed, such as those of a resumed one.
        new = {name: str(value)[:_CHARACTERS] for name, value in settings.items() if name not in self._known}
        self._known.update(new)
        self._client.log_batch(self._id, params=[Param(*each) for each in new.items()])

    def log(self, values: Mapping[str, float], step: int, worker: int | None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = {_REFUSED.sub("_", name_of_worker(name, worker)): value for name, value in values.items()}
        metrics = [Metric(name, value, now, step) for name, value in named.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, succeeded: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if succeeded else "FAILED")
