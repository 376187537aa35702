"""Synchronization as a part of the updates that a Lasagne script compiles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from platoon_base import Rule, Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import EveryN
from platoon_base.theano_ops import Sync, Synchronizer

__all__ = ["sync_updates"]


def sync_updates(
    updates: Mapping[Any, Any],
    params: Sequence[Any],
    rule: Rule,
    every_n_updates: int = 10,
    *,
    on_nonfinite: str = "raise",
    worker: Worker | None = None,
) -> OrderedDict[Any, Any]:
    """Wrap updates so that every N-th call of the compiled function also synchronizes with the other workers.

    Call it after the initial values are in place (weights loaded): the first worker's values are given to all.
    What the optimizer keeps besides the parameters (velocities, moments, step counts) stays each worker's own.

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
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    OrderedDict of shared variable to new value
        For ``theano.function(..., updates=...)``. In a job of one, the updates as they were.

    Raises
    ------
    ConfigurationError
        If a parameter has no update, is no shared variable, or the period is less than 1.
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
    worker.init_shared_params(params, rule, on_nonfinite=on_nonfinite)
    wrapped = OrderedDict(updates)
    if worker.shares:
        synced = Sync(Synchronizer(worker, period))(*(updates[p] for p in params), return_list=True)
        wrapped.update(zip(params, synced))
    return wrapped
