"""Synchronous training: any optimizer, fed with gradients that are averaged over the workers.

The votes to stop travel with the gradients, and so do the ranks that have no batch left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import votes_suffice
from platoon_base.worker import FlatBuffers
from platoon_plugins.keras import backends
from platoon_plugins.keras.marks import mark, unmark

__all__ = [
    "DONE",
    "MIN_WEIGHT",
    "NOT_ATTACHED",
    "VOTE",
    "Batch",
    "DistributedOptimizer",
    "GradientAverage",
    "GradientHeader",
    "average_of",
    "plain_again",
    "require_as_many",
]

Array = np.ndarray[Any, Any]
NOT_ATTACHED = (
    "this DistributedOptimizer is used without distribute(...): the workers' models would start from different "
    "weights, and losses and metrics be those of one worker; pass callbacks=distribute([...]) to each fit, or call "
    "broadcast_variables(model) before a loop over train_on_batch, also after a fit. If you do, and the optimizer is "
    "that of a model within the one that is trained, let the latter keep it in an attribute too, such as "
    "self.inner_optimizer = self.inner.optimizer: it is found there"
)
# What travels with the gradients, one number for each rank: 0, or one of these.
VOTE, DONE = 1.0, 2.0
MIN_WEIGHT = 1e-8  # the weight of a batch in which everything is masked


def DistributedOptimizer(optimizer: Any, *, worker: Worker | None = None) -> Any:  # noqa: N802 - Horovod's name
    """Make an optimizer average its gradients over all workers, before clipping and its own arithmetic.

    ::

        g := sum_i w_i g_i / sum_i w_i

    where w_i is what the loss of worker i is divided by, such as the number of its rows, or of its tokens that are not
    masked. Of losses that are sums, g is the sum. N workers with mini-batches of B rows train as one process does on
    mini-batches of N B rows. A loss that a layer adds (``add_loss``) has to be a mean over rows, and a loss function
    that returns one number for a batch is taken for one, both with a warning; for a ``train_step`` that does not call
    ``compute_loss`` all w_i are 1. Each step is one collective call,
    so the workers wait for one another; if one has fewer batches in an epoch, the others go on without it, and it
    takes their weights over at the epoch's end. Pass ``callbacks=distribute([...])`` to ``fit``: that gives all
    workers the same initial weights. In a loop of your own over ``train_on_batch``, call `broadcast_variables` before
    it and after each ``fit``, and make as many steps on each worker.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or str
        As ``compile`` takes it. It is changed in place, and keeps its class name: a saved model loads without this
        package. Its name on Keras 3 becomes "distributed_NAME": so `distribute` recognizes it in a loaded or copied
        model. A model with several optimizers, such as a GAN, needs a DistributedOptimizer for each.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    keras.optimizers.Optimizer
        The same object; with one worker it is unchanged.

    Raises
    ------
    ConfigurationError
        If it is no optimizer, or distributed already.

    References
    ----------
    Das et al.: Distributed deep learning using synchronous stochastic gradient descent, arXiv 1602.06709.
    """
    optimizer = keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"got {optimizer!r}: pass an optimizer of Keras or its name, such as keras.optimizers.SGD(0.1)"
        )
    if average_of(optimizer) is not None:
        raise ConfigurationError("got an optimizer that is distributed already: wrap it once")
    worker = connect() if worker is None else worker
    if worker.global_size == 1:
        return optimizer
    backend, base = backends.current(), type(optimizer)
    average = backend.average(worker)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    methods = backend.apply_of(base, average)
    optimizer.__class__ = type(base.__name__, (base,), {**names, **methods, "gradient_average": average})
    mark(optimizer)
    return optimizer


def plain_again(optimizer: Any) -> None:
    """Take back what DistributedOptimizer did to an optimizer, or to what it is a copy of."""
    if average_of(optimizer) is not None:
        optimizer.__class__ = type(optimizer).__mro__[1]
    unmark(optimizer)


def average_of(optimizer: Any) -> GradientAverage | None:
    """Return what averages an optimizer's gradients, or None if it is not distributed."""
    found: GradientAverage | None = getattr(type(optimizer), "gradient_average", None)
    return found


class Batch(NamedTuple):
    """The gradients of one batch, on their way to the average; nothing else is passed with them.

    Attributes
    ----------
    gradients : sequence of array, tensor or None
        One for each weight, in the same order on every worker.
    weight : float, tensor or None
        What the loss was divided by, such as the number of rows; None if the loss is a sum.
    used : sequence of bool
        Which gradients there are: of a weight that the step does not use, there is None or zeros.
    """

    gradients: Sequence[Any]
    weight: Any
    used: Sequence[bool]


class GradientAverage:
    """Averages the gradients of a batch over the workers that have one, in one collective call.

    ::

        g := sum_i w_i g_i / sum_i w_i        over the workers whose epoch goes on

    where w_i is what worker i's loss was divided by, the number of rows or of tokens in its batch: so g is the
    gradient of the loss of all their rows. Of losses that are sums, g is the sum. Workers may have different numbers
    of batches: one that has come to the end of its epoch goes on with calls without gradients, see `ModelAverages`. A
    worker whose step does not use a weight contributes zeros for that one.

    Parameters
    ----------
    worker : Worker

    Attributes
    ----------
    attached : bool
        Whether a fit that goes on has prepared the model: otherwise initial weights would differ.
    steps : int
        Calls with gradients in this epoch.
    like : sequence of ndarray
        Zeros in the place of the gradients that come next, as far as that is known.
    variables : sequence
        Whose gradients these are, where `expect` was told.
    lags : bool
        Whether the votes that are seen are those of an earlier batch, for which no worker has to wait.
    """

    lags = False
    _lists = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.attached = False
        self.steps = 0
        self.like: Sequence[Array] = []
        self.variables: Sequence[Any] = []
        self._policy = "any"
        self._calls: list[GradientAverage] | None = None
        self._buffers = FlatBuffers()
        self._mine = GradientHeader(worker.global_size, 0)
        self._all = GradientHeader(worker.global_size, 0)
        self._usual_weight = 1.0

    def place(self, device: Any) -> None:
        """Prepare for gradients that are all on a device, as the back end names it; None if that is the host."""

    def attach(self, policy: str, like: Sequence[Array], calls: list[GradientAverage] | None = None) -> None:
        """Begin a fit.

        Parameters
        ----------
        policy : {"any", "all", "leader"}
            Whose votes end it.
        like : sequence of ndarray
            Of the shapes and dtypes of the gradients.
        calls : list, optional
            Where each call with gradients appends this average, if a model has several.
        """
        self.attached, self._calls = True, calls
        self._policy = policy
        self._usual_weight = 1.0
        self._expect([np.zeros_like(array) for array in like])
        self.send(0.0)

    def detach(self) -> None:
        """End the fit: the next one has to attach again."""
        self.attached, self._calls = False, None

    def send(self, flag: float) -> float:
        """Send 0, `VOTE` or `DONE` with the next calls; returns what was sent so far."""
        flags, rank = self._mine.flags, self.worker.global_rank
        before, flags[rank] = float(flags[rank]), flag
        return before

    @property
    def stops(self) -> bool:
        """Whether the votes seen in the latest call suffice: the same answer on every worker."""
        seen = self._latest()
        if not seen.any():
            return False
        voters = {int(rank) for rank in np.flatnonzero(seen == VOTE)}
        participants = {int(rank) for rank in np.flatnonzero(seen != DONE)}
        return votes_suffice(self._policy, voters, participants)

    def expect(self, variables: Sequence[Any], like: Sequence[Array]) -> None:
        """Record whose gradients come next, and of zeros in their place: a step may train some weights only."""
        if [(zeros.shape, zeros.dtype) for zeros in like] != [(zeros.shape, zeros.dtype) for zeros in self.like]:
            self._expect(like)
        self.variables = list(variables)

    def average(self, batch: Batch) -> list[Any]:
        """Replace a batch's gradients, C-contiguous arrays, by their averages, and return them.

        In the place of None, a weight that is not used in this step, is the average with zeros; None if no worker uses
        it.

        Raises
        ------
        ConfigurationError
            If no fit that goes on has prepared the model.
        WorkerLostError, CollectiveTimeoutError
            If another worker does not make the call.
        """
        arrays = [self.like[i].copy() if array is None else array for i, array in enumerate(batch.gradients)]
        self._step(Batch(arrays, batch.weight, batch.used), arrays)
        return [array if used else None for array, used in zip(arrays, self._all.used > 0)]

    def require_attached(self) -> None:
        """Raise `ConfigurationError` if no fit that goes on has prepared the model."""
        if not self.attached:
            raise ConfigurationError(NOT_ATTACHED)

    def require_sound(self) -> None:
        """Raise the error of an earlier call, where it could not be raised in that call.

        Raises
        ------
        WorkerLostError, CollectiveTimeoutError
            If another worker did not make the call.
        """

    def is_last_call(self) -> bool:
        """Make a call without gradients; return whether all workers have come to the end of their epochs."""
        self._call_without_gradients()
        return bool((self._latest() == DONE).all())

    def settle(self) -> None:
        """Take up what has come with all calls so far, at a point where all workers have made as many."""

    def count(self, steps: int) -> None:
        """Record steps made in a compiled function; others are counted as they are made."""

    def program_started(self) -> None:
        """Record that the compiled program of a batch has been started."""

    def _step(self, batch: Batch, outs: Sequence[Array]) -> None:
        """Put the averages of arrays into other ones, or the same."""
        self._begin_step()
        ins, size = batch.gradients, self.worker.global_size
        if len(ins) != len(self.like):
            self._expect([np.zeros_like(array) for array in ins])
        # Where all weights are gone, losses of layers are left: they have no weights, and must not be lost.
        weight = 1.0 if batch.weight is None else max(float(batch.weight), MIN_WEIGHT)
        self._mine.used[:] = batch.used
        self._mine.weights[self.worker.global_rank] = weight
        usual = self._usual_weight
        self._combine(_scaled(ins, outs, weight / usual), outs, is_sum=batch.weight is None)
        total = float((self._all.weights / usual).sum(dtype=np.float64))
        _scaled(outs, outs, size if batch.weight is None else size / total)

    def _begin_step(self) -> None:
        self.require_attached()
        self.steps += 1
        if self._calls is not None:
            self._calls.append(self)

    def _combine(self, ins: Sequence[Array], outs: Sequence[Array], is_sum: bool) -> None:
        self._buffers.combine(self.worker.all_reduce, "mean", [*ins, self._mine.array], [*outs, self._all.array])
        self._all.round(self.worker.global_size)
        self._usual_weight = self._all.usual_weight(self._usual_weight)

    def _expect(self, like: Sequence[Array]) -> None:
        """Record the gradients to come."""
        flag = self._mine.flags[self.worker.global_rank]
        self.like, self.variables = like, []
        self._mine, self._all = (GradientHeader(self.worker.global_size, len(like), self._lists) for _ in range(2))
        self._mine.flags[self.worker.global_rank] = flag

    def _latest(self) -> Array:
        return self._all.flags

    def _call_without_gradients(self) -> None:
        self._mine.weights[:] = self._mine.used[:] = 0
        self._combine(self.like, [array.copy() for array in self.like], is_sum=False)


class GradientHeader:
    """The numbers that travel with the gradients: a flag and a weight for each rank, and which gradients there are.

    With ``lists`` also how many rows each rank has of each, where they are lists of rows.
    """

    def __init__(self, size: int, gradients: int, lists: bool = False) -> None:
        self.array = np.zeros(2 * size + gradients * (1 + size * lists), np.float32)
        self.flags, self.weights, self.used = self.array[:size], self.array[size : 2 * size], self.array[2 * size :]
        self.used, self.counts = self.used[:gradients], self.used[gradients:].reshape(size * lists, gradients)

    def round(self, size: int) -> None:
        """Make what is left of a mean over the workers, of which most give zeros, the values themselves."""
        self.array *= size
        whole = np.rint(self.array)
        np.copyto(self.array, whole, where=abs(self.array - whole) <= 1e-6 * whole)

    def usual_weight(self, before: float) -> float:
        """Return the largest weight, by which the next gradients are divided, or the one before it if that is tiny.

        It is the same on all workers, in all calls: so batches of the usual size need not be multiplied.
        """
        largest = float(self.weights.max())
        return largest if largest > 2 * MIN_WEIGHT else before  # else the factor would not fit into a float16

    def require_used_alike(self, like: Sequence[Array]) -> None:
        """Raise on all workers if some have a gradient that others have not: these would not change that weight."""
        batches = np.count_nonzero(self.weights)
        some = np.flatnonzero((self.used > 0) & (self.used < batches))
        if some.size:
            weights = ", ".join(f"{i} (shape {like[i].shape})" for i in some[:3]) + " and more" * (some.size > 3)
            raise ConfigurationError(
                f"got gradients of weights {weights} on some workers only: a compiled step changes those that have "
                "one on its own worker, so the models would become different; use the same weights on all workers, "
                "without a branch on the rank"
            )


def require_as_many(worker: Worker, calls: int) -> None:
    """Raise on all workers if they have made other numbers of calls on devices; a collective call."""
    begun = worker.all_gather(np.array([calls]))[:, 0].tolist()
    if len(set(begun)) > 1:
        raise ConfigurationError(
            f"got a fit after one that ended in the middle of a step: the workers have begun {begun} averages "
            "of gradients, and those of some still wait on their devices; start the job anew"
        )


def _scaled(ins: Sequence[Array], outs: Sequence[Array], factor: float) -> Sequence[Array]:
    """Return ``ins`` times a factor, in ``outs``, or themselves if it is 1."""
    if factor == 1:
        return ins
    # Where nothing but masked tokens were left, 0 in float16: not times infinity.
    factors = [array.dtype.type(min(factor, np.finfo(array.dtype).max)) for array in ins]
    return [np.multiply(array, number, out=out) for array, number, out in zip(ins, factors, outs)]
