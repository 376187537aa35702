"""Synchronous training: the compiled function averages the gradients of all workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import theano

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops import (
    UNSURE,
    add_up_sums,
    all_reduce,
    count_single_worker,
    decay_defaults,
    vary_noise_once,
)
from platoon_base.worker import start_together
from platoon_plugins.lasagne.graph import find_statistics, shared_variables
from platoon_plugins.lasagne.training import Training

log = logging.getLogger(__name__)


def all_reduce_grads(
    loss_or_grads: Any,
    params: Iterable[Any],
    *,
    average: bool | None = None,
    statistics: Iterable[Any] = (),
    worker: Worker | None = None,
) -> list[Any]:
    """Return gradients averaged over all workers, for any function of `lasagne.updates`.

    ::

        g := 1/N sum_i g_i        (or sum_i g_i)

    The compiled function runs one flattened all-reduce for each dtype of the gradients (Das et al.,
    arXiv 1602.06709), so all workers must call it equally often (``iterate_minibatches(...,
    uneven="drop")``). With mini-batches of B rows, N workers train like a single process on
    mini-batches of N B rows, whether the loss is a mean over rows or a sum. Each worker has the
    same weight, even if mini-batch sizes differ. For a single worker the gradients are unchanged.

    Call it after the weights are loaded: it immediately copies the first worker's parameters to all
    others. The parameters and the state of the optimizer then stay equal on all workers, up to the
    rounding of their devices. `evaluate` raises if the parameters have become different, for
    instance by different learning rates. A NaN or an infinity of one worker reaches all.

    Each worker computes running statistics from its own rows, until `evaluate` and
    `finish_training` average them. Random streams in the graph, such as those of dropout, differ
    between workers.

    Parameters
    ----------
    loss_or_grads : scalar Theano expression, or list of gradient expressions
        A loss, or one gradient for each parameter, possibly clipped.
    params : list of Theano shared variable
        The same number, order, names, shapes and float dtypes on every worker.
    average : bool, optional
        True takes the mean, False the sum. By default sums over rows in the graph of the loss are
        added up, and means and penalties averaged, with a warning if the graph does not show which
        it is. Gradients are averaged.
    statistics : list of Theano shared variable
        Running statistics that your updates change. Those with a default update in the graph, as of
        BatchNormLayer, are found automatically.
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError
        If the loss is no scalar or does not depend on a parameter, if a parameter is no shared
        variable or has an integer dtype, or if the gradients differ from the parameters in number
        or type.
    LayoutMismatchError
        On every worker, before anything is changed, if the models or arguments differ between
        workers.

    Examples
    --------
    >>> grads = all_reduce_grads(loss, params)                                     # doctest: +SKIP
    >>> updates = lasagne.updates.adam(grads, params)                              # doctest: +SKIP
    """
    params = _shared_variables(params)
    worker = connect() if worker is None else worker
    is_loss = average is None and not isinstance(loss_or_grads, (list, tuple)) and worker.global_size > 1
    added, kinds = add_up_sums(loss_or_grads, worker.global_size) if is_loss else (loss_or_grads, set())
    if "unknown" in kinds and not worker.global_rank:
        log.warning("all_reduce_grads %s", UNSURE)
    if "sum" in kinds and not worker.global_rank:
        log.info("the loss has sums over rows, so the gradients of all workers are summed; average=True averages them")
    kinds_text = f" of {' and '.join(sorted(kinds))}" if kinds else ""
    grads = _gradients(added, params)
    roots = loss_or_grads if isinstance(loss_or_grads, (list, tuple)) else [loss_or_grads]
    used = shared_variables([*roots, *grads])
    statistics = find_statistics(used, statistics, params)
    settings = f"all_reduce_grads(average={average}{kinds_text}) of {len(statistics)} statistics"
    start_together(params, worker, settings)
    training = Training.of(worker)
    training.averaged.update(params)
    if worker.global_size == 1:
        if worker.advanced.launched:
            count_single_worker(params, worker)
        return grads
    training.add(statistics)
    training.start_statistics(statistics)
    decay_defaults(statistics, worker.global_size)
    training.compare_later(params)
    training.intend("all_reduce_grads")
    vary_noise_once(used, worker.global_rank)
    return all_reduce(*grads, op="sum" if average is False else "mean", worker=worker, compress=True)


def _shared_variables(params: Iterable[Any]) -> list[Any]:
    # The __iter__ of a Theano variable raises.
    if isinstance(params, theano.Variable) or not isinstance(params, Iterable):
        raise ConfigurationError(f"got {params!r} as params: pass a list of shared variables, also for a single one")
    params = list(params)
    for param in params:
        if not isinstance(param, theano.compile.SharedVariable):
            raise ConfigurationError(
                f"got {param!r} of type {type(param).__name__} in params: pass shared variables, such as "
                "lasagne.layers.get_all_params(network, trainable=True)"
            )
    return params


def _gradients(loss_or_grads: Any, params: Sequence[Any]) -> list[Any]:
    if not isinstance(loss_or_grads, (list, tuple)):
        return _gradients_of_loss(loss_or_grads, params)
    if len(loss_or_grads) != len(params):
        raise ConfigurationError(
            f"got {len(loss_or_grads)} gradients for {len(params)} parameters: pass one for each, in the same order"
        )
    for grad, param in zip(loss_or_grads, params):
        fits = isinstance(grad, theano.Variable) and grad.dtype in theano.tensor.float_dtypes
        if not fits or grad.ndim != param.ndim:
            raise ConfigurationError(
                f"got {getattr(grad, 'type', type(grad).__name__)} as the gradient of {param}, "
                f"which is {param.type}: pass the gradients in the order of the parameters, as "
                "theano.grad(loss, params) returns them"
            )
    return list(loss_or_grads)


def _gradients_of_loss(loss: Any, params: Sequence[Any]) -> list[Any]:
    if not isinstance(loss, theano.Variable) or getattr(loss, "ndim", None) != 0:
        raise ConfigurationError(
            f"got {getattr(loss, 'type', loss)!r} as the loss: pass a scalar expression, such as loss.mean(), "
            "or a list of gradients"
        )
    grads: list[Any] = theano.grad(loss, params, disconnected_inputs="ignore", return_disconnected="None")
    missing = [str(param) for param, grad in zip(params, grads) if grad is None]
    if missing:
        raise ConfigurationError(
            f"the loss does not depend on {', '.join(missing)}, or not in a way that has a "
            "gradient: remove from params what is not trained"
        )
    return grads
