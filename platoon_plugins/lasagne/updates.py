"""Synchronization as a part of the updates that a Lasagne script compiles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from platoon_base import Rule, Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import EveryN
from platoon_base.theano_ops import Sync, Synchronizer
from platoon_plugins.lasagne.graph import find_statistics, shared_variables, vary_noise_once
from platoon_plugins.lasagne.training import Training

__all__ = ["sync_updates"]


def sync_updates(
    updates: Mapping[Any, Any],
    params: Sequence[Any],
    rule: Rule,
    every_n_updates: int = 10,
    *,
    on_nonfinite: str = "raise",
    statistics: Iterable[Any] = (),
    worker: Worker | None = None,
) -> OrderedDict[Any, Any]:
    """Wrap updates so that every N-th call of the compiled function also synchronizes with the other workers.

    Call it after the initial values are in place (weights loaded): the first worker's values are given to all.
    What the optimizer keeps besides the parameters (velocities, moments, step counts) stays each worker's own, and
    running statistics do until `evaluate` and `finish_training` average them. Random streams in the graph, such as
    those of dropout, draw other numbers on each worker.

    There is one training at a time: `finish_training` ends it before the next one begins. In a job of one launched
    worker the rule changes no parameters, until another worker joins.

    Parameters
    ----------
    updates : mapping of shared variable to new value
        What a function of `lasagne.updates` returned, or any other updates for `theano.function`.
    params : list of Theano shared variable
        The parameters to share, each of which must have an update.
    rule : Rule
        Such as ``EASGD()`` or ``ASGD()``.
    every_n_updates : int, at least 1
        Number of updates from one synchronization to the next.
    on_nonfinite : {"raise", "skip", "restore"}
        See `Worker.init_shared_params`.
    statistics : list of Theano shared variable
        Running statistics that ``updates`` changes. Those that the graph updates by itself, as BatchNormLayer does, are
        found.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    OrderedDict of shared variable to new value
        For ``theano.function(..., updates=...)``. In a job of one, the updates as they were.

    Raises
    ------
    ConfigurationError
        If a parameter has no update, is no shared variable, or the period is less than 1; or if another training has
        not been finished.
    LayoutMismatchError
        If the model differs from that of the other workers.

    Examples
    --------
    >>> updates = lasagne.updates.adam(loss, params)                                # doctest: +SKIP
    >>> updates = sync_updates(updates, params, EASGD(), every_n_updates=10)        # doctest: +SKIP
    """
    period = EveryN(every_n_updates)
    if not isinstance(updates, Mapping):
        raise ConfigurationError(
            f"got {type(updates).__name__} as updates: pass what a function of lasagne.updates returned"
        )
    params = list(params)
    missing = [str(p) for p in params if p not in updates]
    if missing:
        raise ConfigurationError(
            f"no update for {', '.join(missing)}: only parameters that are trained can be synchronized; "
            "leave the others out of params"
        )
    worker = connect() if worker is None else worker
    training = _begin(worker)
    used = shared_variables(updates.values())
    worker.init_shared_params(params, rule, on_nonfinite=on_nonfinite)
    training.shares = True
    found = find_statistics(used, statistics, params)
    training.add(found)
    training.start_statistics(worker, found)
    vary_noise_once(used, worker.global_rank)
    wrapped = OrderedDict(updates)
    if worker.shares:
        synced = Sync(Synchronizer(worker, period))(*(updates[p] for p in params), return_list=True)
        wrapped.update(zip(params, synced))
    return wrapped


def _begin(worker: Worker) -> Training:
    if worker.sharing:
        raise ConfigurationError(
            "parameters are shared already, and there is one center at a time. Before the next training, such as "
            "another fold, call finish_training() on every worker. If two functions train two sets of parameters, such "
            "as those of a GAN, compile both with their plain updates, call worker.init_shared_params(params_1 + "
            "params_2, rule) once, and worker.sync_params() every few steps of the loop, where worker = connect()"
        )
    if Training.of(worker).shares:  # that was released otherwise than by finish_training
        Training.forget(worker)
    return Training.of(worker)
