"""Synchronous training: a step rule that averages the gradients of all workers."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import theano
from blocks.algorithms import StepRule
from theano.gof.graph import ancestors

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops import UNSURE, AllReduce, add_up_sums, all_reduce
from platoon_base.worker import start_together, warn_once
from platoon_plugins.blocks.model import updates_of


class AllReduceGradients(StepRule):
    """Average the gradients of all workers, and pass them to another step rule.

    ::

        g := 1/N sum_i g_i        (or sum_i g_i)

    The compiled function runs one flattened all-reduce for each dtype (Das et al., arXiv
    1602.06709), so all workers must process the same number of batches (``shard_stream(stream,
    uneven="drop")``). With batches of B rows and a cost that is a mean over rows, N workers train
    like a single process with batches of N B rows. Each worker has the same weight, even if batch
    sizes differ. For a single worker the gradients are unchanged.

    Add ``ParameterSync()`` to the extensions: it copies the first worker's parameters to all others
    when training begins. Without it they are copied when `GradientDescent` is constructed, dropout
    draws the same numbers on all workers, and models that become different raise no error.

    Parameters
    ----------
    step_rule : StepRule, optional
        Computes steps from the averaged gradients. The default returns the averages, for use as the
        first component of a CompositeRule.
    average : bool, optional
        False takes the sum, for a cost that is a sum over rows; `prepare` detects such a cost. The
        default is the mean, with a warning if the cost is a sum.
    worker : Worker, default ``connect()``

    Examples
    --------
    >>> AllReduceGradients(Momentum(0.1, 0.9))                                     # doctest: +SKIP
    >>> CompositeRule([AllReduceGradients(), StepClipping(1.0), Scale(0.1)])       # doctest: +SKIP
    """

    def __init__(
        self, step_rule: StepRule | None = None, *, average: bool | None = None, worker: Worker | None = None
    ) -> None:
        if step_rule is not None and not isinstance(step_rule, StepRule):
            raise ConfigurationError(f"got {step_rule!r}: pass a step rule, such as Scale(0.1)")
        self.step_rule = step_rule
        self.average = average
        self._worker = worker

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}

    def compute_steps(self, previous_steps: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
        worker = connect() if self._worker is None else self._worker
        if worker.global_size > 1:
            previous_steps = self._reduced(previous_steps, worker)
        return (previous_steps, []) if self.step_rule is None else self.step_rule.compute_steps(previous_steps)

    def _reduced(self, steps: Mapping[Any, Any], worker: Worker) -> Mapping[Any, Any]:
        start_together(list(steps), worker, f"AllReduceGradients(average={self.average is not False})")
        reduced = all_reduce(
            *steps.values(), op="sum" if self.average is False else "mean", worker=worker, compress=True
        )
        return OrderedDict(zip(steps, reduced))


def average_gradients_of(algorithm: Any, worker: Worker, average: bool | None = None) -> dict[Any, Any]:
    """Put averages in place of the gradients of a `GradientDescent`, before it is compiled."""
    # Returns the replacement of each variable that may be monitored.
    if not (hasattr(algorithm, "gradients") and hasattr(algorithm, "step_rule")):
        raise ConfigurationError(
            f"got the algorithm {type(algorithm).__name__}, which has no gradients or step rule "
            "to average: use GradientDescent(..., step_rule=AllReduceGradients(your_step_rule)), "
            'or mode="async"'
        )
    if hasattr(algorithm, "_function"):
        raise ConfigurationError(
            "got an initialized algorithm, whose function is compiled without averaged "
            "gradients: call prepare before training starts, or pass "
            "step_rule=AllReduceGradients(your_step_rule)"
        )
    if average is None:
        average = not _sums_rows(algorithm, worker)
    averaged, _ = AllReduceGradients(average=average, worker=worker).compute_steps(algorithm.gradients)
    replaced = {
        algorithm.gradients[p]: averaged[p] for p in algorithm.parameters if averaged is not algorithm.gradients
    }
    algorithm.step_rule = AllReduceGradients(algorithm.step_rule, average=average, worker=worker)
    # A single worker has nothing to average.
    if not replaced:
        return {}
    targets, values = zip(*algorithm.updates)
    steps = [algorithm.steps[p] for p in algorithm.parameters]
    before = [*steps, algorithm.total_step_norm]
    copies = theano.clone([*values, *before], replace=replaced)
    after = copies[len(values) :]
    for old, new in zip(before, after):
        _name_alike(old, new)
    algorithm.updates = list(zip(targets, copies[: len(values)]))
    algorithm.steps = OrderedDict(zip(algorithm.parameters, after))
    algorithm.total_step_norm = after[-1]
    return dict(zip(before, after))


def _sums_rows(algorithm: Any, worker: Worker) -> bool:
    """Return whether the cost is a sum over the rows; warn if only a part is, or it is unknown."""
    if worker.global_size == 1:
        return False
    _, kinds = add_up_sums(algorithm.cost, worker.global_size)
    mixed = "sum" in kinds and len(kinds) > 1
    if (mixed or "unknown" in kinds) and not worker.global_rank:
        why = (
            "has a cost with sums over the rows besides means or penalties, and uses the mean "
            "over the workers: steps along the sums are 1/N as long as in one process with all "
            "rows. Make the cost a mean over rows, or pass average=True if this is intended"
        )
        warn_once(f"AllReduceGradients {why if mixed else UNSURE}")
    return kinds == {"sum"}


def warn_of_sums(algorithm: Any, worker: Worker) -> None:
    """Warn if a user's step rule averages over the workers a cost that is a sum over the rows."""
    rules = [rule for rule in _averaging_rules(algorithm) if rule.average is None]
    if rules and _sums_rows(algorithm, worker) and not worker.global_rank:
        warn_once(
            "AllReduceGradients averages over the workers a cost that is a sum over rows, so "
            "steps are 1/N as long as in one process with all rows: pass average=False, or "
            "average=True if this is intended"
        )


def _name_alike(old: Any, new: Any) -> None:
    """Copy a variable's name, and the aggregation scheme that monitoring has put into its tag."""
    new.name = old.name
    scheme = getattr(old.tag, "aggregation_scheme", None)
    if scheme is not None:
        new.tag.aggregation_scheme = copy.copy(scheme)
        for name, value in vars(scheme).items():
            if value is old:
                setattr(new.tag.aggregation_scheme, name, new)


def averages_gradients(algorithm: Any) -> bool:
    values = [value for _, value in updates_of(algorithm)]
    nodes = (variable.owner for variable in ancestors(values) if variable.owner is not None)
    return any(isinstance(node.op, AllReduce) for node in nodes)


def has_averaging_rule(algorithm: Any) -> bool:
    """Return whether the step rule is `AllReduceGradients`, even if a single worker compiled it."""
    return any(True for _ in _averaging_rules(algorithm))


def _averaging_rules(algorithm: Any) -> Iterator[AllReduceGradients]:
    rules = [getattr(algorithm, "step_rule", None)]
    while rules:
        rule = rules.pop()
        if isinstance(rule, AllReduceGradients):
            yield rule
        rules += getattr(rule, "components", [])
