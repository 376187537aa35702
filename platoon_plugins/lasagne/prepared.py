"""`prepare`, which calls a function of `lasagne.updates` for several workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from platoon_base import Rule, Worker
from platoon_base.errors import ConfigurationError
from platoon_base.rules import prepared_rule
from platoon_plugins.lasagne.gradients import all_reduce_grads
from platoon_plugins.lasagne.sync import sync_updates


def prepare(
    update: Callable[..., Any],
    loss_or_grads: Any,
    params: Sequence[Any],
    *args: Any,
    mode: str | None = None,
    strategy: Rule | None = None,
    sync_every: int | None = None,
    average: bool | None = None,
    worker: Worker | None = None,
    **kwargs: Any,
) -> Any:
    """Return ``update(loss_or_grads, params, *args, **kwargs)`` for a training by all workers.

    With "async" the result goes through `sync_updates`: each worker makes its own steps, and
    synchronizes with a common center. With "sync" the gradients go through `all_reduce_grads`:
    those of each step are averaged, and `iterate_minibatches` needs ``uneven="drop"``. End the
    training by `finish_training`. A single worker gets the result of ``update``.

    Parameters
    ----------
    update : callable
        A function of `lasagne.updates`, such as ``lasagne.updates.adam``.
    loss_or_grads : scalar Theano expression, or list of gradient expressions
    params : list of Theano shared variable
    *args, **kwargs
        Further arguments of ``update``, such as the learning rate.
    mode : {"async", "sync"}, default "async"
    strategy : Rule, optional
        A rule such as `EASGD`, with "async"; see `sync_updates`.
    sync_every : int, optional
        Batches from one synchronization to the next, with "async".
    average : bool, optional
        With "sync": take the mean of the gradients, or their sum; see `all_reduce_grads`.
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError, LayoutMismatchError
        Those of `sync_updates` and `all_reduce_grads`.

    Examples
    --------
    >>> updates = prepare(lasagne.updates.adam, loss, params, learning_rate=0.01)  # doctest: +SKIP
    >>> updates = prepare(lasagne.updates.adam, loss, params, mode="sync")         # doctest: +SKIP
    """
    if not callable(update):
        raise ConfigurationError(
            f"got {type(update).__name__} as the update: pass the function, such as "
            "lasagne.updates.adam, followed by its arguments; for existing updates call "
            "sync_updates"
        )
    rule = prepared_rule(mode, strategy, sync_every)
    if mode == "sync":
        return update(all_reduce_grads(loss_or_grads, params, average=average, worker=worker), params, *args, **kwargs)
    if average is not None:
        raise ConfigurationError(f'got average={average!r}, which is for averaged gradients: pass mode="sync" with it')
    return sync_updates(update(loss_or_grads, params, *args, **kwargs), params, rule, sync_every, worker=worker)
