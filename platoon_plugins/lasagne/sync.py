"""Synchronization inside the compiled training function of a Lasagne script."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from platoon_base import Rule, Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.rules import at_period, default_period, default_rule, require_rule, shares_moments
from platoon_base.schedule import require_period
from platoon_base.theano_ops import Sync, Synchronizer, decay_as_one_process, decay_defaults, vary_noise_once
from platoon_base.worker import DEFAULT_TIMEOUT_S
from platoon_plugins.lasagne.graph import find_moments, find_statistics, shared_variables
from platoon_plugins.lasagne.learning_rate import warn_of_unscaled_schedule
from platoon_plugins.lasagne.training import Training, warn_unless_finished


def sync_updates(
    updates: Mapping[Any, Any],
    params: Sequence[Any],
    rule: Rule | str | None = "auto",
    every_n_batches: int | None = None,
    *,
    on_nonfinite: str = "raise",
    statistics: Iterable[Any] = (),
    timeout_s: float = DEFAULT_TIMEOUT_S,
    worker: Worker | None = None,
) -> OrderedDict[Any, Any]:
    """Wrap updates so that every N-th call of the compiled function also synchronizes.

    Call it after the weights are loaded: it copies the first worker's values to all others. Rules
    such as the default one also share the optimizer's moments; its other state is each worker's
    own. So are the running statistics, until `evaluate` and `finish_training` average them. Random
    streams in the graph, such as those of dropout, differ between workers.

    Only one training may be in progress: end it by `finish_training` before the next. For a single
    worker the updates are unchanged, but a launched one synchronizes once another worker has
    joined.

    Parameters
    ----------
    updates : mapping of shared variable to new value
        The result of a function of `lasagne.updates`, or any other updates for `theano.function`.
    params : list of Theano shared variable
        The parameters to share, each of which must have an update.
    rule : Rule, None or "auto"
        A rule such as `CenterMomentum`, `EASGD`, `DiLoCo`. None leaves the updates unchanged, and
        needs `all_reduce_grads`. "auto" is None if `all_reduce_grads` has averaged the gradients of
        ``params``, and otherwise `platoon_base.rules.default_rule`.
    every_n_batches : int, at least 1, optional
        Batches, or calls of the compiled function, from one synchronization to the next. The
        default is `platoon_base.rules.default_period` of the rule.
    on_nonfinite : {"raise", "skip", "restore"}
        How the rule treats a worker's NaN or infinity; see `Worker.init_shared_params`.
    statistics : list of Theano shared variable
        Running statistics that ``updates`` changes, which are never moments. Those with a default
        update in the graph, as of BatchNormLayer, are found automatically.
    timeout_s : float
        Bound on each wait for the other workers, here and in the compiled function.
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError
        If a parameter has no update or is no shared variable; if the period is less than 1; if the
        rule does not fit the gradients; or if another training has not been finished.
    LayoutMismatchError
        If the model differs from that of the other workers.

    Examples
    --------
    >>> updates = lasagne.updates.adam(loss, params)                               # doctest: +SKIP
    >>> updates = sync_updates(updates, params)                                    # doctest: +SKIP
    """
    worker = connect() if worker is None else worker
    default = default_period(rule)
    wanted = require_period(default if every_n_batches is None else every_n_batches)
    if not isinstance(updates, Mapping):
        raise ConfigurationError(
            f"got {type(updates).__name__} as updates: pass the result of a function of lasagne.updates"
        )
    params, statistics = list(params), list(statistics)
    missing = [str(p) for p in params if p not in updates]
    if missing:
        raise ConfigurationError(
            f"no update for {', '.join(missing)}: only trained parameters can be synchronized; "
            "remove the others from params"
        )
    rule = _resolved(rule, wanted, params, worker, on_nonfinite)
    wanted = default_period(rule) if every_n_batches is None else wanted
    training = Training.of(worker, timeout_s) if rule is None else _new_training(worker, timeout_s)
    used = shared_variables(updates.values())
    warn_of_unscaled_schedule(updates, params, worker)
    if rule is not None:
        rule = at_period(rule, wanted)
        moments = find_moments(updates, params, statistics) if shares_moments(rule) else []
        shared = [*params, *moments]
        worker.init_shared_params(params, rule, moments=moments, on_nonfinite=on_nonfinite, timeout_s=timeout_s)
        training.begin(rule, wanted)
    found = find_statistics(used, statistics, params)
    training.add(found)
    training.start_statistics(found)
    vary_noise_once(used, worker.global_rank)
    decay_defaults(found, worker.global_size)
    wrapped = OrderedDict(updates)
    wrapped.update(decay_as_one_process([(v, updates[v]) for v in statistics if v in updates], worker.global_size))
    if rule is not None and worker.advanced.shares:
        sync = Sync(Synchronizer(training))
        wrapped.update(zip(shared, sync(*(updates[variable] for variable in shared), return_list=True)))
        training.intend("sync_updates")
    return wrapped


def _resolved(
    rule: Rule | str | None, period: int, params: Sequence[Any], worker: Worker, on_nonfinite: str
) -> Rule | None:
    if rule not in (None, "auto"):
        require_rule(rule)
        return rule  # type: ignore[return-value]
    averaged = Training.of(worker).averaged
    others = [str(param) for param in params if param not in averaged]
    if rule == "auto" and len(others) == len(params):
        return default_rule(period, [param.dtype for param in params])
    if others:
        raise ConfigurationError(
            f"got rule={rule!r}, and the gradients of {', '.join(others)} are not averaged: pass "
            "a rule, such as EASGD(), or compute the updates from all_reduce_grads(loss, "
            "params), with all of these params"
        )
    if on_nonfinite != "raise":
        raise ConfigurationError(
            f"got on_nonfinite={on_nonfinite!r} and no rule: averaged gradients send a NaN of one "
            "worker to all others; leave it out"
        )
    return None


def _new_training(worker: Worker, timeout_s: float) -> Training:
    if worker.advanced.sharing:
        raise ConfigurationError(
            "parameters are shared already, and a job has one center at a time. Before the next "
            "training, such as another fold, call finish_training() on every worker. If two "
            "functions train two sets of parameters, such as those of a GAN, compile both with "
            "their plain updates, call worker.init_shared_params(params_1 + params_2, rule) "
            "once, and worker.sync_params() every few steps of the loop, where worker = connect()"
        )
    # The center of that training was released, but not by finish_training.
    if Training.of(worker).rule is not None:
        Training.forget(worker)
    warn_unless_finished(worker)
    return Training.of(worker, timeout_s)
