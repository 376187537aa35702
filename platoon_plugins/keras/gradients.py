"""Synchronous training: any optimizer, applied to gradients that are averaged over the workers.

Votes to stop, and flags of ranks without batches, are sent together with the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.frameworks import deterministic_seed
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
    "weights, and losses and metrics be those of one worker; pass callbacks=distribute([...]) to each fit. For a loop "
    "of your own compile the model with it, model.compile(optimizer), and call broadcast_variables(model) before the "
    "loop, also after a fit. If you do, and the optimizer is "
    "that of a model within the one that is trained, let the latter keep it in an attribute too, such as "
    "self.inner_optimizer = self.inner.optimizer: it is found there"
)
# Flags that are sent with the gradients, one for each rank: 0, or one of these.
VOTE, DONE = 1.0, 2.0
_EXACT = deterministic_seed() is not None
MIN_WEIGHT = 1e-8  # of a batch in which everything is masked


def DistributedOptimizer(optimizer: Any, *, worker: Worker | None = None) -> Any:  # noqa: N802 - Horovod's name
    """Make an optimizer average its gradients over all workers, before clipping and its own arithmetic.

    ::

        g := sum_i w_i g_i / sum_i w_i

    where w_i is the divisor of worker i's loss, such as the number of its rows, or of its tokens that are not masked.
    For losses that are sums, g is the sum. N workers with mini-batches of B rows train like a single process with
    mini-batches of N B rows. A loss that a layer adds (``add_loss``) must be a mean over rows, and a loss function that
    returns one number for a batch is taken to be one; both give a warning. In a ``train_step`` that does not call
    ``compute_loss`` all w_i are 1.

    Each step is one collective call, two with ``--hosts-compression``, so the workers wait for each other. If one has
    fewer batches in an epoch, the others continue without it, and it gets their weights at the end of the epoch.

    Pass ``callbacks=distribute([...])`` to ``fit``: it gives all workers the same initial weights. For your own loop
    over ``train_on_batch``, call `broadcast_variables` before the loop and after each ``fit``, and make the same number
    of steps on each worker.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or str
        An optimizer or its name, as for ``compile``. It is changed in place, and keeps its class name, so a saved model
        can be loaded without this package. On Keras 3 its ``name`` becomes "distributed_NAME", by which `distribute`
        recognizes it in a loaded or copied model. A model with several optimizers, such as a GAN, needs a
        DistributedOptimizer for each.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    keras.optimizers.Optimizer
        The same object; unchanged for a single worker.

    Raises
    ------
    ConfigurationError
        If it is no optimizer, or already a DistributedOptimizer.

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
    """Make a DistributedOptimizer, or a copy of one, a plain optimizer without a mark."""
    if average_of(optimizer) is not None:
        optimizer.__class__ = type(optimizer).__mro__[1]
    unmark(optimizer)


def average_of(optimizer: Any) -> GradientAverage | None:
    """Return the average of a DistributedOptimizer's gradients; None for a plain optimizer."""
    found: GradientAverage | None = getattr(type(optimizer), "gradient_average", None)
    return found


class Batch(NamedTuple):
    """The gradients of one batch, to be averaged.

    Attributes
    ----------
    gradients : sequence of array, tensor or None
        One for each weight, in the same order on every worker.
    weight : float, tensor or None
        The divisor of the loss, such as the number of rows; None if the loss is a sum.
    used : sequence of bool
        Whether the step uses each weight; if not, its gradient is None or zeros.
    """

    gradients: Sequence[Any]
    weight: Any
    used: Sequence[bool]


class GradientAverage:
    """Averages the gradients of a batch over the workers that have one.

    ::

        g := sum_i w_i g_i / sum_i w_i        over the workers whose epoch has not ended

    where w_i is the divisor of worker i's loss, such as the number of rows or tokens in its batch. So g is the gradient
    of the loss over all their rows. For losses that are sums, g is the sum. Workers may have different numbers of
    batches: one that has ended its epoch makes calls without gradients, see `ModelAverages`. A worker whose step does
    not use a weight contributes zeros for it.

    Parameters
    ----------
    worker : Worker

    Attributes
    ----------
    attached : bool
        Whether a fit in progress has prepared the model; otherwise initial weights might differ between workers.
    steps : int
        Number of calls with gradients in this epoch.
    like : sequence of ndarray
        Zeros with the shapes and dtypes of the next gradients, as far as they are known.
    variables : sequence
        The variables of these gradients, as passed to `expect`.
    lags : bool
        Whether the votes received are those of an earlier batch, so that no worker has to wait for them.
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
        # With compression the header travels exactly, before the gradients, whose sum is then their result.
        self._compresses = worker.advanced.compresses_gradients
        self._buffers = FlatBuffers(compress=self._compresses)
        self._names: Sequence[Any] = []  # of the gradients' residuals
        self._owners: dict[int, Any] = {}  # variables by their ids, which belong to others once a variable is gone
        self._mine = GradientHeader(worker.global_size, 0)
        self._all = GradientHeader(worker.global_size, 0)
        self._usual_weight = 1.0

    def place(self, device: Any) -> None:
        """Prepare for gradients on a device, given as the back end's object for it; None for the host."""

    def attach(self, policy: str, like: Sequence[Array], calls: list[GradientAverage] | None = None) -> None:
        """Start a fit.

        Parameters
        ----------
        policy : {"any", "all", "leader"}
            Which votes end the fit.
        like : sequence of ndarray
            Arrays with the shapes and dtypes of the gradients.
        calls : list, optional
            Each call with gradients appends this average to it; for models with several averages.
        """
        self.attached, self._calls = True, calls
        self._policy = policy
        self._usual_weight = 1.0
        self._expect([np.zeros_like(array) for array in like])
        self.send(0.0)

    def detach(self) -> None:
        """End the fit; the next one has to attach again."""
        self.attached, self._calls = False, None

    def send(self, flag: float) -> float:
        """Send 0, `VOTE` or `DONE` with the next calls; return the flag that was sent so far."""
        flags, rank = self._mine.flags, self.worker.global_rank
        before, flags[rank] = float(flags[rank]), flag
        return before

    @property
    def stops(self) -> bool:
        """Whether the votes received with the latest call suffice to end the fit; the same on every worker."""
        seen = self._latest()
        if not seen.any():
            return False
        voters = {int(rank) for rank in np.flatnonzero(seen == VOTE)}
        participants = {int(rank) for rank in np.flatnonzero(seen != DONE)}
        return votes_suffice(self._policy, voters, participants)

    def expect(self, variables: Sequence[Any], like: Sequence[Array]) -> None:
        """Record the variables of the next gradients, and zeros like these: a step may train only some weights."""
        if [(zeros.shape, zeros.dtype) for zeros in like] != [(zeros.shape, zeros.dtype) for zeros in self.like]:
            self._expect(like)
        self.variables = list(variables)
        if self._compresses:
            self._owners.update((id(variable), variable) for variable in variables)
            self._names = [id(variable) for variable in variables]

    def average(self, batch: Batch) -> list[Any]:
        """Replace a batch's gradients, C-contiguous arrays, by their averages, and return them.

        For a gradient of None, of a weight that this step does not use, the result is the average with zeros, or None
        if no worker uses the weight.

        Raises
        ------
        ConfigurationError
            If no fit in progress has prepared the model.
        WorkerLostError, CollectiveTimeoutError
            If another worker does not make the call.
        """
        arrays = [self.like[i].copy() if array is None else array for i, array in enumerate(batch.gradients)]
        self._step(Batch(arrays, batch.weight, batch.used), arrays)
        return [array if used else None for array, used in zip(arrays, self._all.used > 0)]

    def require_attached(self) -> None:
        """Raise `ConfigurationError` if no fit in progress has prepared the model."""
        if not self.attached:
            raise ConfigurationError(NOT_ATTACHED)

    def require_sound(self) -> None:
        """Raise the error of an earlier call that could not be raised in that call.

        Raises
        ------
        WorkerLostError, CollectiveTimeoutError
            If another worker did not make the call.
        """

    def is_last_call(self) -> bool:
        """Make a call without gradients; return whether all workers have ended their epochs."""
        self._call_without_gradients()
        return bool((self._latest() == DONE).all())

    def settle(self) -> None:
        """Read the flags of all calls so far, when all workers have made the same number of calls."""

    def count(self, steps: int) -> None:
        """Record steps of a compiled function, if it does not call `average` for each step."""

    def program_started(self) -> None:
        """Record that the compiled program of a batch has been started."""

    def _step(self, batch: Batch, outs: Sequence[Array]) -> None:
        """Write the averages of a batch's gradients to ``outs``, which may be the same arrays."""
        self._begin_step()
        ins, size = batch.gradients, self.worker.global_size
        if len(ins) != len(self.like):
            self._expect([np.zeros_like(array) for array in ins])
        # If everything is masked, the losses of layers remain: they have no weights, and must still have an effect.
        weight = 1.0 if batch.weight is None else max(float(batch.weight), MIN_WEIGHT)
        self._mine.used[:] = batch.used
        self._mine.weights[self.worker.global_rank] = weight
        is_sum, usual = batch.weight is None, self._usual_weight
        if self._compresses:
            self._exchange_header()
            total = float(self._all.weights.sum(dtype=np.float64))
            self._combine(_scaled(ins, outs, 1.0 if is_sum else weight / total), outs, is_sum)
            return
        self._combine(_scaled(ins, outs, weight / usual), outs, is_sum)
        total = float((self._all.weights / usual).sum(dtype=np.float64))
        _scaled(outs, outs, size if is_sum else size / total)

    def _begin_step(self) -> None:
        self.require_attached()
        self.steps += 1
        if self._calls is not None:
            self._calls.append(self)

    def _combine(self, ins: Sequence[Array], outs: Sequence[Array], is_sum: bool) -> None:
        """Average gradients and the header; with compression add the gradients that some worker has."""
        if self._compresses:
            # For others, what is kept would be lost in a result that nobody uses.
            here = [i for i, array in enumerate(ins) if array.size and self._all.used[i]]
            names = self._names or range(len(ins))
            self._buffers.combine(
                self.worker.all_reduce, "sum", [ins[i] for i in here], [outs[i] for i in here], [names[i] for i in here]
            )
            return
        self._buffers.combine(self.worker.all_reduce, "mean", [*ins, self._mine.array], [*outs, self._all.array])
        self._read_header()

    def _exchange_header(self) -> None:
        """Average the header alone."""
        self.worker.all_reduce(self._mine.array, "mean", self._all.array)
        self._read_header()

    def _read_header(self) -> None:
        self._all.round(self.worker.global_size)
        self._usual_weight = self._all.usual_weight(self._usual_weight)

    def _expect(self, like: Sequence[Array]) -> None:
        """Record zeros like the next gradients, and make headers for as many."""
        flag = self._mine.flags[self.worker.global_rank]
        self.like, self.variables, self._names = like, [], []
        self._mine, self._all = (GradientHeader(self.worker.global_size, len(like), self._lists) for _ in range(2))
        self._mine.flags[self.worker.global_rank] = flag

    def _latest(self) -> Array:
        return self._all.flags

    def _call_without_gradients(self) -> None:
        self._mine.weights[:] = self._mine.used[:] = 0
        if self._compresses:
            self._exchange_header()
        self._combine(self.like, [array.copy() for array in self.like], is_sum=False)


class GradientHeader:
    """The numbers sent with the gradients: a flag and a weight for each rank, and by how many ranks each is used.

    With ``lists`` also the number of rows that each rank has of each gradient that is a list of rows.
    """

    def __init__(self, size: int, gradients: int, lists: bool = False) -> None:
        self.array = np.zeros(2 * size + gradients * (1 + size * lists), np.float32)
        self.flags, self.weights, self.used = self.array[:size], self.array[size : 2 * size], self.array[2 * size :]
        self.used, self.counts = self.used[:gradients], self.used[gradients:].reshape(size * lists, gradients)

    def round(self, size: int) -> None:
        """Turn the mean over the workers back into the sum, without its rounding errors of whole numbers."""
        self.array *= size
        whole = np.rint(self.array)
        np.copyto(self.array, whole, where=abs(self.array - whole) <= 1e-6 * whole)

    def usual_weight(self, before: float) -> float:
        """Return the largest weight, by which the next gradients are divided; the previous one if it is tiny.

        It is the same on all workers, so the gradients of batches of the usual size need not be multiplied. Under
        ``--deterministic`` it is a power of two, by which no bit depends on the steps before.
        """
        largest = float(self.weights.max())
        if _EXACT and largest > 0:
            largest = 2.0 ** (math.frexp(largest)[1] - 1)
        return largest if largest > 2 * MIN_WEIGHT else before  # otherwise the factor would overflow a float16

    def require_used_alike(self, like: Sequence[Array]) -> None:
        """Raise on all workers if only some have the gradient of a weight: the others would not change the weight."""
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
    """Raise on all workers if they have made different numbers of calls on devices; a collective call."""
    begun = worker.all_gather(np.array([calls]))[:, 0].tolist()
    if len(set(begun)) > 1:
        raise ConfigurationError(
            f"got a fit after one that ended in the middle of a step: the workers have begun {begun} averages "
            "of gradients, and those of some still wait on their devices; start the job anew"
        )


def _scaled(ins: Sequence[Array], outs: Sequence[Array], factor: float) -> Sequence[Array]:
    """Return ``ins`` times a factor, in ``outs``; ``ins`` itself if the factor is 1."""
    if factor == 1:
        return ins
    # A factor that overflows float16 would turn zeros, the gradients if everything is masked, into NaN.
    factors = [array.dtype.type(min(factor, np.finfo(array.dtype).max)) for array in ins]
    return [np.multiply(array, number, out=out) for array, number, out in zip(ins, factors, outs)]
