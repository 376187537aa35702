"""Synchronous training: any optimizer, applied to gradients averaged over the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.schedule import votes_suffice
from platoon_base.worker import MIN_WEIGHT, Header, HostAverage
from platoon_plugins.keras import backends
from platoon_plugins.keras.marks import change_class, mark, unmark

NOT_ATTACHED = (
    "this DistributedOptimizer is used without distribute(...): the workers' models would start "
    "from different weights, and losses and metrics would be those of one worker. Pass "
    "callbacks=distribute([...]) to each fit. In your own loop compile the model with it, "
    "model.compile(optimizer), and call broadcast_variables(model) before the loop, also after a "
    "fit. If the optimizer belongs to a model inside the trained one, store it in an attribute "
    "of the outer model too, such as self.inner_optimizer = self.inner.optimizer"
)
# Flags of the ranks in the header; 0 for none.
VOTE, DONE = 1.0, 2.0


def DistributedOptimizer(optimizer: Any, *, worker: Worker | None = None) -> Any:  # noqa: N802 - Horovod's name
    """Make an optimizer average its gradients over all workers, before it clips and applies them.

    ::

        g := sum_i w_i g_i / sum_i w_i

    where w_i is the divisor of worker i's loss, such as its number of rows or of unmasked tokens.
    For losses that are sums, g is the sum. N workers with mini-batches of B rows train like one
    process with mini-batches of N B rows. A loss that a layer adds (``add_loss``) must be a mean
    over rows; a loss function that returns one number per batch is taken for such a mean. Both give
    a warning. In a ``train_step`` that does not call ``compute_loss`` all w_i are 1.

    Each step is one collective call, two with ``--hosts-compression``. A worker with fewer batches
    in an epoch gets the weights of the others at the end of the epoch.

    Pass ``callbacks=distribute([...])`` to ``fit``, so that all workers start from the same
    weights. In your own loop over ``train_on_batch``, call `broadcast_variables` before the loop
    and after each ``fit``, and make the same number of steps on each worker.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or str
        Changed in place. It keeps its class name, so a saved model can be loaded without this
        package. On Keras 3 its ``name`` becomes "distributed_NAME", which identifies it in loaded
        and copied models. A model with several optimizers, such as a GAN, needs one for each.
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
    Das et al.: Distributed deep learning using synchronous stochastic gradient descent, arXiv
    1602.06709.
    """
    optimizer = keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"got {optimizer!r}: pass an optimizer of Keras or its name, such as keras.optimizers.SGD(0.1)"
        )
    if average_of(optimizer) is not None:
        raise ConfigurationError("got an optimizer that is distributed already: wrap it only once")
    worker = connect() if worker is None else worker
    if worker.global_size == 1:
        return optimizer
    backend, base = backends.current(), type(optimizer)
    average = backend.average(worker)
    change_class(optimizer, {**backend.apply_of(base, average), "gradient_average": average})
    mark(optimizer)
    return optimizer


def plain_again(optimizer: Any) -> bool:
    """Turn a DistributedOptimizer, or a copy of one, into a plain optimizer; return whether it was one."""
    averages = average_of(optimizer) is not None
    if averages:
        optimizer.__class__ = type(optimizer).__mro__[1]
    unmark(optimizer)
    return averages


def average_of(optimizer: Any) -> GradientAverage | None:
    """Return the `GradientAverage` of a DistributedOptimizer; None for a plain optimizer."""
    found: GradientAverage | None = getattr(type(optimizer), "gradient_average", None)
    return found


class Batch(NamedTuple):
    """The gradients of one batch; ``weight`` is the divisor of the loss, None for a sum."""

    # The gradients are in the same order on every worker, None or zeros for unused weights.

    gradients: Sequence[Any]
    weight: Any
    used: Sequence[bool]


class GradientAverage:
    """Averages the gradients of a batch over the workers whose epoch has not ended."""

    # g := sum_i w_i g_i / sum_i w_i. Workers at the end of their epoch call without gradients, see
    # `ModelAverages`. Unused weights contribute zeros.

    on_device = False  # On a device the header of a step is read after later steps have begun.
    _lists = False
    _calls_made = 0  # Collective calls on devices, which may still wait there.

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.attached = False
        self.steps = 0
        self.like: Sequence[Array] = []
        self.variables: Sequence[Any] = []
        self._policy = "any"
        self._calls: list[GradientAverage] | None = None
        self._compresses = worker.advanced.compresses_gradients
        self._average = HostAverage(worker.all_reduce, worker.global_rank, worker.global_size, self._compresses)
        # Names of the gradients' residuals.
        self._names: Sequence[Any] = []
        # Keeps variables alive, as ids of deleted objects are reused.
        self._owners: dict[int, Any] = {}
        self._mine = GradientHeader(worker.global_size, 0)
        self._all = GradientHeader(worker.global_size, 0)

    def place(self, device: Any) -> None:
        """Prepare for gradients on a device of the back end; None for the host."""

    def attach(self, policy: str, like: Sequence[Array], calls: list[GradientAverage] | None = None) -> None:
        """Start a fit; each call with gradients appends this average to ``calls``, if any."""
        begun = self.worker.all_gather(np.array([self._calls_made]))[:, 0].tolist() if self.on_device else []
        if len(set(begun)) > 1:
            raise ConfigurationError(
                "got a fit after one that ended in the middle of a step: the workers have "
                f"started {begun} averages of gradients, and some of these still wait on their "
                "devices; restart the job"
            )
        self._forget()
        self.attached, self._calls = True, calls
        self._policy = policy
        self._average.unit = 1.0
        self._expect([np.zeros_like(array) for array in like])
        self.send(0.0)

    def _forget(self) -> None:
        """Forget the calls and the errors of earlier fits."""

    def detach(self) -> None:
        """End the fit; the next one has to attach again."""
        self.attached, self._calls = False, None

    def send(self, flag: float) -> float:
        """Send 0, `VOTE` or `DONE` with the next calls; return the previous flag."""
        flags, rank = self._mine.flags, self.worker.global_rank
        before, flags[rank] = float(flags[rank]), flag
        return before

    @property
    def stops(self) -> bool:
        """Whether the latest votes suffice to end the fit; the same on every worker."""
        seen = self._latest()
        if not seen.any():
            return False
        voters = {int(rank) for rank in np.flatnonzero(seen == VOTE)}
        participants = {int(rank) for rank in np.flatnonzero(seen != DONE)}
        return votes_suffice(self._policy, voters, participants)

    def expect(self, variables: Sequence[Any], like: Sequence[Array]) -> None:
        """Record the variables of the next gradients, as a step may train only some weights."""
        if [(zeros.shape, zeros.dtype) for zeros in like] != [(zeros.shape, zeros.dtype) for zeros in self.like]:
            self._expect(like)
        self.variables = list(variables)
        if self._compresses:
            self._owners.update((id(variable), variable) for variable in variables)
            self._names = [id(variable) for variable in variables]

    def average(self, batch: Batch) -> list[Any]:
        """Replace a batch's gradients, C-contiguous arrays, by their averages, and return them."""
        # An unused weight contributes zeros; its average is None if no worker uses it.
        arrays = [self.like[i].copy() if array is None else array for i, array in enumerate(batch.gradients)]
        self._step(Batch(arrays, batch.weight, batch.used), arrays)
        return [array if used else None for array, used in zip(arrays, self._all.used > 0)]

    def require_attached(self) -> None:
        if not self.attached:
            raise ConfigurationError(NOT_ATTACHED)

    def require_sound(self) -> None:
        """Raise the error of an earlier call that could not be raised in that call."""

    def is_last_call(self) -> bool:
        """Make a call without gradients; return whether all workers have ended their epochs."""
        self._call_without_gradients()
        self._catch_up()
        return bool((self._latest() == DONE).all())

    def settle(self) -> None:
        """Forget the flags of all calls so far, after all workers have made equally many."""
        self._catch_up()
        self._all.flags[:] = 0  # These flags must not affect the next epoch.

    def _catch_up(self) -> None:
        """Wait for the headers of all calls so far, and read them."""

    def count(self, steps: int) -> None:
        """Record steps of a compiled function that does not call `average` itself."""

    def program_started(self) -> None:
        """Record the start of a batch's compiled program."""

    def _step(self, batch: Batch, outs: Sequence[Array]) -> None:
        """Write the averages of a batch's gradients to ``outs``, which may be the same arrays."""
        self._begin_step()
        if len(batch.gradients) != len(self.like):
            self._expect([np.zeros_like(array) for array in batch.gradients])
        # If everything is masked, the losses of layers must still have an effect.
        weight = 1.0 if batch.weight is None else max(float(batch.weight), MIN_WEIGHT)
        self._mine.used[:] = batch.used
        self._exchange(batch.gradients, outs, weight, batch.weight is None)

    def _begin_step(self) -> None:
        self.require_attached()
        self.steps += 1
        if self._calls is not None:
            self._calls.append(self)

    def _exchange(self, ins: Sequence[Array], outs: Sequence[Array], weight: float, is_sum: bool) -> None:
        """Average gradients and the header; ``weight`` is 0 for a worker without a batch."""
        self._average(ins, outs, weight, self._mine, self._all, is_sum=is_sum, names=self._names)

    def _expect(self, like: Sequence[Array]) -> None:
        flag = self._mine.flags[self.worker.global_rank]
        self.like, self.variables, self._names = like, [], []
        self._mine, self._all = (GradientHeader(self.worker.global_size, len(like), self._lists) for _ in range(2))
        self._mine.flags[self.worker.global_rank] = flag

    def _latest(self) -> Array:
        return self._all.flags

    def _call_without_gradients(self) -> None:
        self._mine.used[:] = 0
        self._exchange(self.like, [np.empty_like(array) for array in self.like], 0.0, is_sum=False)


class GradientHeader(Header):
    """Sent with gradients; it also has each rank's flag."""

    # With `lists` also each rank's number of rows in each gradient that is a list of rows.

    def __init__(self, size: int, gradients: int, lists: bool = False) -> None:
        super().__init__(size, gradients, size * (1 + gradients * lists))
        self.flags, self.counts = self.others[:size], self.others[size:].reshape(size * lists, gradients)

    def require_used_alike(self, like: Sequence[Array]) -> None:
        """Raise on all workers if only some have the gradient of a weight."""
        batches = np.count_nonzero(self.weights)
        some = np.flatnonzero((self.used > 0) & (self.used < batches))
        if some.size:
            weights = ", ".join(f"{i} (shape {like[i].shape})" for i in some[:3]) + " and more" * (some.size > 3)
            raise ConfigurationError(
                f"got gradients of weights {weights} on some workers only: a compiled step "
                "changes weights that have a gradient on its own worker, so the models would "
                "differ; use the same weights on all workers, without a branch on the rank"
            )


class CompiledAverage(GradientAverage):
    """Averages gradients by calls from a compiled program; errors are stored for later calls."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._failure: PlatoonError | None = None

    def _forget(self) -> None:
        self._failure = None

    def average(self, batch: Batch) -> list[Any]:
        """Return the averages as values of a traced program; None for weights without a gradient."""
        # These weights must be the same in every step and on all workers. Zeros are averaged for
        # them, as a worker without a batch cannot leave them out.
        self.require_attached()
        filled = [
            keras.ops.zeros(zeros.shape, zeros.dtype.name) if gradient is None else gradient
            for gradient, zeros in zip(batch.gradients, self.like)
        ]
        averages = self.average_in_program(batch._replace(gradients=filled))
        return [average if used else None for average, used in zip(averages, batch.used)]

    def average_in_program(self, batch: Batch) -> Sequence[Any]:
        """Return the averages of a batch's tensors, which are zeros for unused weights."""
        raise NotImplementedError

    def fill(self, batch: Batch, outs: Sequence[Array]) -> None:
        """Write averages to ``outs``, C-contiguous and possibly inputs; the program calls it."""
        self.require_sound()
        self.require_attached()
        try:
            with self.worker.advanced.clock.call_of_program():
                self._step(batch, outs)
        except PlatoonError as exc:
            self._failure = exc
            for out in outs:
                out[...] = 0

    def require_sound(self) -> None:
        if self._failure is not None:
            raise self._failure
