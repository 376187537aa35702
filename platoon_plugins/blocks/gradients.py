"""Synchronous training: the gradients of all workers, averaged before any other step rule sees them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from blocks.algorithms import StepRule

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops import all_reduce
from platoon_base.worker.initial_values import start_together

__all__ = ["AllReduceGradients"]


class AllReduceGradients(StepRule):  # type: ignore[misc]
    """Average what comes in over all workers, and pass it to another step rule.

    ::

        g := 1/N sum_i g_i        (or sum_i g_i)

    The mean is taken inside the compiled function, in one flattened all-reduce for each dtype, so all workers process
    as many batches (``shard_stream(stream, uneven="drop")``), and of the same size: with B rows each and a cost that is
    a mean over rows, N workers then train as one process does with batches of N B rows. If sizes differ, the mean is
    still that of the workers, not of the rows.

    Add ``ParameterSync(None)`` to the extensions. It copies the first worker's parameters to all others when training
    begins. Without it they are copied when `GradientDescent` is made, so they must be in place by then. Dropout then
    draws the same on all workers, and nobody notices if their models become different.

    In a job of one, nothing is averaged.

    Parameters
    ----------
    step_rule : StepRule, optional
        What makes steps of the averaged gradients, such as ``CompositeRule([StepClipping(1.0), Adam()])``. Without one
        the averages are the steps, as the first component of a CompositeRule needs them.
    average : bool
        Take the mean; False takes the sum.
    worker : Worker, optional
        The default is ``connect()``.

    References
    ----------
    Das et al.: Distributed deep learning using synchronous stochastic gradient descent, arXiv 1602.06709.

    Examples
    --------
    >>> AllReduceGradients(Momentum(0.1, 0.9))                                      # doctest: +SKIP
    >>> CompositeRule([AllReduceGradients(), StepClipping(1.0), Scale(0.1)])        # doctest: +SKIP
    """

    def __init__(
        self, step_rule: StepRule | None = None, average: bool = True, *, worker: Worker | None = None
    ) -> None:
        if step_rule is not None and not isinstance(step_rule, StepRule):
            raise ConfigurationError(f"got {step_rule!r}: pass a step rule, such as Scale(0.1)")
        self.step_rule = step_rule
        self.average = average
        self._worker = worker

    def __getstate__(self) -> dict[str, Any]:
        """The handle belongs to a running job."""
        return {**self.__dict__, "_worker": None}

    def compute_steps(self, previous_steps: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
        """Return the steps of all parameters, and the updates of the step rule; see `StepRule.compute_steps`."""
        worker = connect() if self._worker is None else self._worker
        if worker.global_size > 1:
            previous_steps = self._reduced(previous_steps, worker)
        return (previous_steps, []) if self.step_rule is None else self.step_rule.compute_steps(previous_steps)

    def _reduced(self, steps: Mapping[Any, Any], worker: Worker) -> Mapping[Any, Any]:
        start_together(list(steps), worker, f"AllReduceGradients(average={bool(self.average)})")
        reduced = all_reduce(*steps.values(), op="mean" if self.average else "sum", worker=worker)
        return OrderedDict(zip(steps, reduced))
