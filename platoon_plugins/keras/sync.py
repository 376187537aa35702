"""`distribute`, whose callbacks make the fits of several workers train one model."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import keras

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule, require_rule
from platoon_base.schedule import require_period, require_policy
from platoon_base.sharding import shard_seed
from platoon_base.worker import require_on_nonfinite
from platoon_plugins.keras import backends, seeds
from platoon_plugins.keras.callbacks import (
    Fits,
    bounds_of,
    hooks_into_batches,
    in_center,
    listed,
    make_first,
    make_last,
    saves_in_mid_epoch,
    with_progress_reports,
)
from platoon_plugins.keras.standby import Standby, quieten, stand_by
from platoon_plugins.keras.training import Settings

log = logging.getLogger(__name__)

_WRITERS = ("ModelCheckpoint", "OrbaxCheckpoint", "BackupAndRestore", "CSVLogger", "TensorBoard", "RemoteMonitor")
LEADER_ONLY: tuple[type, ...] = tuple(
    getattr(keras.callbacks, name) for name in _WRITERS if hasattr(keras.callbacks, name)
)
"""The callbacks of Keras that write files or send messages."""


def distribute(
    callbacks: Iterable[Any] = (),
    rule: Rule | str | None = "auto",
    every_n_batches: int | None = None,
    *,
    policy: str = "any",
    leader_only: tuple[type, ...] = LEADER_ONLY,
    on_nonfinite: str = "raise",
    worker: Worker | None = None,
) -> list[Any]:
    """Return the callbacks to pass to ``fit``: yours, between two callbacks of this package.

    All workers call ``fit`` with the same arguments except the data, see `shard`. At its start they
    get the weights, statistics and optimizer state of rank 0, and different seeds for random layers
    and shuffling. Then they train

    - asynchronously, with a rule: every N batches and at the end of each epoch the rule
      synchronizes each worker's trainable weights with the center. Evaluation, checkpoints and
      ``model`` after ``fit`` have the center's weights. With an outer-step rule, such as `DiLoCo`,
      the workers wait for each other every N batches and continue from the center;
    - synchronously, if the model is compiled with `DistributedOptimizer`: each step uses the
      averaged gradients.

    At the end of an epoch float state that is not trained, such as the running statistics of
    BatchNormalization, is averaged, and ``logs`` get the exact values over the data of all workers
    before your callbacks see them. EarlyStopping and the like therefore decide alike on all
    workers. A metric class of your own declares by ``adds_up = True`` that its variables are sums
    over samples. Weights that a callback sets at the end of an epoch are copied to the center and
    all workers.

    Only the leader, rank 0, prints and runs the callbacks of ``leader_only`` and derived classes.
    Add your own writer by ``leader_only=(*LEADER_ONLY, Mine)``; it must not stop training. If the
    leader fails, the lowest remaining rank runs them from the end of the epoch on: it calls their
    ``on_train_begin`` (except that of BackupAndRestore), which should append to existing files, and
    the ``on_epoch_end`` that the leader has missed.

    Under plain ``python`` your callbacks are returned unchanged. For a single launched worker a
    callback is added that reports progress to the launcher, and stops the fit if the job stops.

    Parameters
    ----------
    callbacks : list of keras.callbacks.Callback
    rule : Rule, None or "auto"
        A rule such as `CenterMomentum`, `EASGD`, `DiLoCo`; None with a DistributedOptimizer. "auto"
        is None for such an optimizer, and `platoon_base.rules.default_rule` for a plain one:
        ``AveragedEASGD()``, and ``CenterMomentum()`` for longer periods, ``steps_per_execution``
        above 1, and optimizers that are not built before ``fit``. "auto" is refused for a plain
        optimizer that has made steps without a rule: in a loaded model it may have been a
        DistributedOptimizer.
    every_n_batches : int, optional
        Batches from one synchronization to the next. The default is that of the rule, see
        `platoon_base.rules.default_period`.
    policy : {"any", "all", "leader"}
        When to end the fit on all workers: if a callback of any worker sets
        ``model.stop_training``, once those of all workers have, or if one on rank 0 has. A stop in
        the middle of an epoch reaches the others within one or two batches; synchronous workers end
        after the same batch.
    leader_only : tuple of type
        Callbacks of these classes run on the leader only; ``()`` for none. The default is those of
        Keras that write: ModelCheckpoint, OrbaxCheckpoint, BackupAndRestore, CSVLogger, TensorBoard
        and RemoteMonitor.
    on_nonfinite : {"raise", "skip", "restore"}
        What the rule does with a worker's NaN or infinity; see `Worker.init_shared_params`.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    list of keras.callbacks.Callback
        For one ``fit``; call `distribute` again, or copy the list deeply, for the next.

    Raises
    ------
    ConfigurationError
        If the arguments cannot work. Errors in the model are raised at the start of ``fit``.

    Examples
    --------
    >>> model.fit(*shard(x, y), validation_data=shard(xv, yv),                    # doctest: +SKIP
    ...           callbacks=distribute([EarlyStopping()]))
    """
    callbacks = _checked(callbacks)
    require_settings(rule, every_n_batches, policy, leader_only, on_nonfinite)
    backend = backends.current()
    worker = connect() if worker is None else worker
    if worker.global_size == 1:
        if not worker.advanced.launched or worker.late:
            return callbacks
        at_batches = backend.watches_batches or any(hooks_into_batches(callback) for callback in callbacks)
        return with_progress_reports(callbacks, worker, at_batches)
    fits = Fits(worker, backend, Settings(rule, every_n_batches, policy, on_nonfinite), leader_only)
    if worker.global_rank:
        backend.seed_early(shard_seed(worker.seed + seeds.fits(), worker.global_rank))
    return _between(callbacks, fits, backend.watches_batches)


def require_settings(
    rule: Any, every_n_batches: int | None, policy: str, leader_only: tuple[type, ...], on_nonfinite: str
) -> None:
    """Raise `ConfigurationError` unless these arguments of `distribute` can work."""
    if rule is not None and rule != "auto":
        require_rule(rule)
    if every_n_batches is not None:
        require_period(every_n_batches)
    require_policy(policy)
    if not isinstance(leader_only, tuple) or not all(isinstance(writer, type) for writer in leader_only):
        raise ConfigurationError(
            f"got leader_only={leader_only!r}: pass a tuple of classes, such as (ModelCheckpoint,)"
        )
    require_on_nonfinite(on_nonfinite)


def _between(callbacks: list[Any], fits: Fits, at_batches: bool) -> list[Any]:
    """Return callbacks between this package's; `Standby` replaces writers except on the leader."""
    backend = fits.backend
    # This must be the same on all ranks, as a stop in mid-epoch must take effect at the same batch.
    at_batches = at_batches or any(hooks_into_batches(callback) for callback in callbacks)
    for callback in callbacks:
        if not fits.leads and not isinstance(callback, fits.leader_only):
            quieten(callback)
        if saves_in_mid_epoch(callback):
            in_center(callback, fits)
    if not fits.leads:
        callbacks = [stand_by(each) if isinstance(each, fits.leader_only) else each for each in callbacks]
    fits.swaps_at_epochs = any(getattr(callback, "swap_on_epoch", False) for callback in callbacks)
    standbys = [callback for callback in callbacks if isinstance(callback, Standby)]
    return [make_first(fits, backend.watches_batches), *callbacks, make_last(fits, at_batches, standbys)]


def is_distributed(callbacks: list[Any]) -> bool:
    """Return whether the callbacks of a fit come from `distribute`, in a job of several workers."""
    return bool(bounds_of(callbacks))


def take_in(callbacks: Any) -> Any:
    """Return the callbacks of a fit, with those beside the list of `distribute` moved into it."""
    # Otherwise each worker would write checkpoints, and decide by its own data.
    given = listed(callbacks)
    bounds = bounds_of(given)
    if not bounds:
        return callbacks
    if len(bounds) > 1:
        raise ConfigurationError(
            f"got the callbacks of {len(bounds)} calls of distribute() in one fit, which would "
            "synchronize the workers twice: pass all callbacks to one call, distribute([...])"
        )
    first, last, fits = bounds[0]
    before, behind = given[:first], given[last + 1 :]
    # Keras puts its own callbacks first.
    of_keras = sum(type(callback).__name__ in _OF_KERAS_2 for callback in before)
    history = bool(behind) and type(behind[-1]).__name__ in _OF_KERAS_2
    own_end = len(behind) - history
    outside = [*before[of_keras:], *behind[:own_end]]
    if not outside:
        return callbacks
    users = [*before[of_keras:], *given[first + 1 : last], *behind[:own_end]]
    log.info(
        "callbacks besides those of distribute() are now handled by it: %s", [type(each).__name__ for each in outside]
    )
    return [*before[:of_keras], *_between(users, fits, hooks_into_batches(given[last])), *behind[own_end:]]


# The callbacks that Keras 2 adds before and after those of a fit.
_OF_KERAS_2 = () if hasattr(keras, "tree") else ("BaseLogger", "ProgbarLogger", "History")


def _checked(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.Callback):
        raise ConfigurationError(
            f"got one callback, {type(callbacks).__name__}: pass a list, also for a single callback"
        )
    if callbacks is None:
        return []
    callbacks = list(callbacks)
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            what = callback.__name__ if isinstance(callback, type) else repr(callback)
            raise ConfigurationError(f"got {what} among the callbacks: pass objects, such as EarlyStopping()")
    return callbacks
