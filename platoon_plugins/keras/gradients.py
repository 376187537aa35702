"""Gradients averaged over the workers, and with them the answers to two questions: who stops, who has no batch left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.collectives.flat import FlatBuffers
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.schedule import votes_suffice

__all__ = ["NOT_ATTACHED", "GradientAverage"]

Array = np.ndarray[Any, Any]
NOT_ATTACHED = (
    "this DistributedOptimizer is used without distribute(...): the workers' models would start from different "
    "weights, and losses and metrics be those of one worker; pass callbacks=distribute([...]) to each fit, or call "
    "broadcast_variables(model) before a loop over train_on_batch, also after a fit"
)
# What travels with the gradients, one number for each rank: 0, or one of these.
_VOTES, _DONE = 1.0, 2.0


class GradientAverage:
    """Averages lists of gradients over the workers that have a batch, in one collective call.

    ::

        g := 1/A sum_i g_i        over the A workers whose epoch goes on

    Workers may have different numbers of batches: one that has come to the end of its epoch calls `join`, and
    contributes zeros until all have come there.

    Parameters
    ----------
    worker : Worker

    Attributes
    ----------
    attached : bool
        Whether a fit that goes on has prepared the model: otherwise initial weights would differ.
    steps : int
        Calls in this epoch.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.attached = False
        self.steps = 0
        self._policy = "any"
        self._buffers = FlatBuffers()
        self._flags = np.zeros(worker.global_size, np.float32)
        self._seen = np.zeros_like(self._flags)
        self._like: list[Array] = []
        self._failure: PlatoonError | None = None

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """Begin a fit.

        Parameters
        ----------
        policy : {"any", "all", "leader"}
            Whose votes end it.
        like : sequence of ndarray
            Of the shapes and dtypes of the gradients.
        """
        self.attached = True
        self._failure = None
        self._policy = policy
        self._like = [np.zeros_like(array) for array in like]
        self._seen[:] = 0
        self._send(0.0)

    def detach(self) -> None:
        """End the fit: the next one has to attach again."""
        self.attached = False

    def vote(self) -> None:
        """Vote for the end of the fit: all workers learn it from the next call."""
        self._send(_VOTES)

    @property
    def stops(self) -> bool:
        """Whether the votes seen in the latest call suffice: the same answer on every worker."""
        seen = self._latest()
        if not seen.any():
            return False
        voters = {int(rank) for rank in np.flatnonzero(seen == _VOTES)}
        members = {int(rank) for rank in np.flatnonzero(seen != _DONE)}
        return votes_suffice(self._policy, voters, members)

    def __call__(self, gradients: Sequence[Any]) -> list[Array]:
        """Return the averages in new arrays; called back from a compiled program.

        An exception would come out of it as the back end's own, behind pages of traces: what goes wrong is kept, and
        raised by `require_sound` and by the next call.

        Parameters
        ----------
        gradients : sequence of array
            The same number, shapes and dtypes on every worker.
        """
        self.require_sound()
        self._require_attached()
        ins = [np.asarray(gradient, order="C") for gradient in gradients]
        outs = [np.empty_like(array) for array in ins]
        try:
            self._step(ins, outs)
        except PlatoonError as exc:
            self._failure = exc
            return [np.zeros_like(array) for array in ins]
        return outs

    def require_sound(self) -> None:
        """Raise what an earlier call could not.

        Raises
        ------
        WorkerLostError, CollectiveTimeoutError
            If another worker did not make the call.
        """
        if self._failure is not None:
            raise self._failure

    def in_place(self, gradients: Sequence[Array]) -> None:
        """Replace C-contiguous arrays by their averages.

        Raises
        ------
        WorkerLostError, CollectiveTimeoutError
            If another worker does not make the call.
        """
        self._step(gradients, gradients)

    def join(self) -> list[int]:
        """Take part without gradients until every worker has come to the end of its epoch.

        Returns
        -------
        list of int
            The number of steps that each rank has made in it, after which weights and optimizers differ unless they
            are the same.
        """
        flag = self._flags[self.worker.global_rank]
        self._send(_DONE)
        while True:
            self._call_without_gradients()
            if (self._latest() == _DONE).all():
                break
        self._send(float(flag))
        steps: list[int] = self.worker.all_gather(np.array([self.steps]))[:, 0].tolist()
        self.steps = 0
        return steps

    def count(self, steps: int) -> None:
        """Take note of steps made in a compiled function; others are counted as they are made."""

    def _step(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        self._require_attached()
        self.steps += 1
        self._combine(ins, outs)
        active = np.count_nonzero(self._seen != _DONE)
        if active < len(self._seen):
            for out in outs:
                out *= out.dtype.type(len(self._seen) / active)

    def _require_attached(self) -> None:
        if not self.attached:
            raise ConfigurationError(NOT_ATTACHED)

    def _combine(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        self._buffers.combine(self._all_reduce, "mean", [*ins, self._flags], [*outs, self._seen])
        self._seen[:] = np.rint(self._seen * len(self._seen))

    def _all_reduce(self, array: Array, op: str, dest: Array) -> None:
        self.worker.all_reduce(array, op, dest=dest)

    # What is done otherwise where gradients stay within a compiled function.

    def _send(self, flag: float) -> None:
        self._flags[self.worker.global_rank] = flag

    def _latest(self) -> Array:
        return self._seen

    def _call_without_gradients(self) -> None:
        self._combine(self._like, [array.copy() for array in self._like])
