"""The leader's tasks in a fit, printing, callbacks that write and trackers, and their transfer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.worker import warn_once
from platoon_plugins.keras.marks import callers

log = logging.getLogger(__name__)

_VERBOSE = "platoon_verbose"
_HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]
_RESTORES = getattr(keras.callbacks, "BackupAndRestore", ())


class Hooks(keras.callbacks.Callback):
    """A callback that keeps its model, as ``self.model`` would fetch JAX's state at each batch."""

    owner: Any = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.owner = model


class Standby(Hooks):
    """Placeholder of a leader's callback; it forwards the hooks once this worker is the leader."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self.callback = callback
        self._active = False
        self._epoch = 0
        self._missed: dict[str, Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._active:
            self.callback.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._active:
            self.callback.on_epoch_end(epoch, logs)
        else:
            self._missed = dict(logs or {})

    def follow(self) -> None:
        """Record a completed epoch of the leader, and the best value of ``save_best_only``."""
        logs, self._missed = self._missed, None
        callback = self.callback
        if not logs or not getattr(callback, "save_best_only", False) or callback.monitor not in logs:
            return
        if callback.monitor_op is None:  # Keras 3 sets it once the metrics exist.
            callback.set_model(self.owner)
            callback._set_monitor_op()
        current = logs[callback.monitor]
        if callback.best is None or callback.monitor_op(current, callback.best):
            callback.best = current

    def take_over(self) -> None:
        """Activate the callback, and call the ``on_epoch_end`` that the leader may have missed."""
        callback, self._active = self.callback, True
        callback.set_params(self.params)
        callback.set_model(self.owner)
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True  # Keeps the lines of the leader.
        # BackupAndRestore would load earlier weights.
        if not isinstance(callback, _RESTORES):
            callback.on_train_begin({})
        callback.on_epoch_begin(self._epoch, {})
        logs, self._missed = self._missed, None
        if logs is not None:
            callback.on_epoch_end(self._epoch, logs)


def overrides(callback: Any, hook: str) -> bool:
    """Return whether a callback has a hook that is not Keras's own, which does nothing."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(keras.callbacks.Callback, hook)


def stand_by(callback: Any) -> Standby:
    """Return the `Standby` that replaces a leader's callback on another worker."""

    def passing(name: str) -> Callable[..., Any]:
        def hook(self: Any, *args: Any, **kwargs: Any) -> None:
            if self._active:
                getattr(self.callback, name)(*args, **kwargs)

        return hook

    own = ("on_train_begin", "on_epoch_begin", "on_epoch_end")
    methods = {name: passing(name) for name in _HOOKS if name not in own and overrides(callback, name)}
    return type("Standby", (Standby,), methods)(callback)


def quieten(callback: Any) -> None:
    if hasattr(callback, "verbose"):
        if not hasattr(callback, _VERBOSE):
            setattr(callback, _VERBOSE, callback.verbose)
        callback.verbose = 0


def take_over(mine: Any, rank: int, verbose: Any) -> None:
    """Become the leader in a hook of ``mine``: activate each `Standby` and silenced callback."""
    log.warning("rank %d is the leader from here on: it writes and prints instead of a rank that is lost", rank)
    lists = (getattr(values.get("self"), "callbacks", None) for _, values in callers())
    for callback in next((list(found) for found in lists if isinstance(found, list) and mine in found), []):
        if isinstance(callback, Standby):
            callback.take_over()
        elif hasattr(callback, _VERBOSE):
            callback.verbose = getattr(callback, _VERBOSE)
        elif isinstance(callback, keras.callbacks.ProgbarLogger):
            callback.verbose = 1 if verbose == "auto" else verbose
            (callback.params or {})["verbose"] = callback.verbose


def warn_of_own_runs(worker: Worker) -> None:
    """Warn if a worker that is not the leader has its own W&B or MLflow run without a group."""
    if worker.is_leader:
        return
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    run = getattr(wandb, "run", None)
    if run is not None and not getattr(run, "disabled", False) and not getattr(run, "group", ""):
        warn_once(
            "this worker has a separate W&B run besides the leader's; for one run per job write "
            "wandb.init(..., mode=None if is_main() else 'disabled'), or set a group"
        )
    if getattr(mlflow, "active_run", lambda: None)() is not None:
        warn_once(
            "this worker has a separate MLflow run besides the leader's; for one run per job "
            "write if is_main(): before mlflow.autolog() or mlflow.start_run()"
        )
