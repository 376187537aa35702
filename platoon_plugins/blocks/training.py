"""One main loop that trains together with those of other workers: where they meet, how they begin and how they end."""

from __future__ import annotations

import contextlib
import enum
import itertools
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from platoon_base import Worker
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.rules import Rule
from platoon_base.theano_ops.noise import vary_noise
from platoon_base.worker import DEFAULT_TIMEOUT_S
from platoon_base.worker.divergence import require_same_values
from platoon_base.worker.initial_values import start_together
from platoon_plugins.blocks.algorithms import (
    averages_gradients,
    collected_statistics,
    hyperparameters,
    meant_to_average,
    step_rule_state,
    trained_parameters,
)
from platoon_plugins.blocks.chains import chain_of, vary_draws
from platoon_plugins.blocks.same_data import require_dealt_out
from platoon_plugins.blocks.streams import is_broadcast

__all__ = ["Meeting", "Settings", "Training", "Vote"]

log = logging.getLogger(__name__)

_FINISH = "the end of training"
_SAME_MODEL = (
    "averaged gradients keep models the same only if all workers take the same steps: give all of them the same step "
    "rule and learning rate, and the same extensions that change parameters or the learning rate"
)
_LEAVING_TIMEOUT_S = 10.0  # with an error to report there is no time to lose
_numbers = itertools.count(1)


class Settings(NamedTuple):
    """How to train.

    Attributes
    ----------
    rule : Rule or None
        None for gradients that are averaged.
    parameters : sequence of Theano shared variable or None
        None for those of the algorithm, or of the model.
    leader_only : tuple of type
        Extensions that run on the first worker only.
    on_nonfinite : {"raise", "skip", "restore"}
    timeout_s : float
        Bound on the wait for the other workers at a meeting.
    worker : Worker or None
        None for the one that this process is.
    """

    rule: Rule | None
    parameters: Sequence[Any] | None = None
    leader_only: tuple[type, ...] = ()
    on_nonfinite: str = "raise"
    timeout_s: float = DEFAULT_TIMEOUT_S
    worker: Worker | None = None


class Vote(enum.IntEnum):
    """What a worker says to stopping: `END` leaves the others no choice."""

    NO = 0
    YES = 1
    END = 2


class Meeting(NamedTuple):
    """Who met, who voted to stop, and whether one of them must.

    Attributes
    ----------
    ranks : list of int
    voters : set of int
    ends : bool
    """

    ranks: list[int]
    voters: set[int]
    ends: bool


class Training:
    """One run of a main loop on this worker; what the extensions of the main loop have in common.

    All collective calls but those inside the compiled function are made at meetings, which every main loop comes to
    equally often. If one main loop ends, its worker waits for the others at the end; those that come to another
    meeting then learn of it, and end too (with `StopTogether`) or go on without it.

    Parameters
    ----------
    worker : Worker
    main_loop : blocks.main_loop.MainLoop
    settings : Settings
    stops_together : bool

    Attributes
    ----------
    averages : bool
        Whether the workers average gradients.
    lockstep : bool
        Whether they process each batch together, because they do, or because one reads the batches for all.
    members : list of int
        The ranks at the last meeting.
    compared : set
        The evaluators whose streams were compared between the workers.
    prepared, started, finished : bool
        Whether the other extensions were looked at, and whether training has begun and ended.
    """

    def __init__(self, worker: Worker, main_loop: Any, settings: Settings, stops_together: bool) -> None:
        self.worker = worker
        self.settings = settings
        self.timeout_s = settings.timeout_s
        self.averages = averages_gradients(main_loop.algorithm)
        self.lockstep = self.averages or is_broadcast(main_loop.data_stream)
        self.members: list[int] = []
        self.compared: weakref.WeakSet[Any] = weakref.WeakSet()
        self.prepared = self.started = self.finished = False
        self._averaged_at: int | None = None  # the batch after which statistics were last the same on all workers
        self._told_of_own = False
        self._stops_together = stops_together or self.lockstep
        # The main loop may be forgotten when nothing but this is left of it.
        self._main_loop_ref = weakref.ref(main_loop)
        self._number = next(_numbers)
        self._require_one_way(main_loop.algorithm)

    @property
    def _main_loop(self) -> Any:
        return self._main_loop_ref()

    def _require_one_way(self, algorithm: Any) -> None:
        if self.averages and self.settings.rule is not None:
            raise ConfigurationError(
                f"got {self.settings.rule} and an algorithm that averages gradients: the workers would be kept together"
                " twice; use ParameterSync(None) with AllReduceGradients, or the rule with the plain step rule"
            )
        if not self.averages and self.settings.rule is None:
            if meant_to_average(algorithm):
                raise ConfigurationError(
                    "got a main loop that was made in a job of one, where there is nothing to average, and pickled: "
                    "make it anew, and bring the values by Load(path)"
                )
            raise ConfigurationError(
                "got neither a rule nor averaged gradients: each worker would train a model of its own; pass a rule, "
                "as in ParameterSync(EASGD()), or use the step rule AllReduceGradients(...)"
            )

    # The begin.

    def start(self) -> None:
        """Begin together: the first worker's values go to all others, once all extensions had their before_training."""
        worker, status = self.worker, self._main_loop.status
        if worker.late:
            raise ConfigurationError(
                "this worker joined late: the workers of a main loop count epochs together from its begin; launch the "
                "job with more workers"
            )
        worker.meet(f"main loop {self._number}", binds=True, timeout_s=self.timeout_s)
        way = "averaged gradients" if self.averages else f"{self.settings.rule}"
        self.meet(f"the begin, with {way}, {status['iterations_done']} batches of {status['epochs_done']} epochs done")
        require_dealt_out(self._main_loop.data_stream, worker, f"main loop {self._number}", timeout_s=self.timeout_s)
        self._share()
        self._require_same_model()
        # Nobody moves the center before all have taken its first values over.
        self.meet("the first batch")
        worker.stop_votes.open(self._number)
        function = getattr(self._main_loop.algorithm, "_function", None)
        if function is not None:
            vary_noise(function.get_shared(), worker.global_rank)
        # Those that were pickled on one worker, too.
        for link in chain_of(self._main_loop.data_stream):
            vary_draws(link, worker.global_rank)
        self._averaged_at = status["iterations_done"]
        self.started = True

    def _require_same_model(self) -> None:
        """Raise on all workers if models that averaged gradients keep the same have become different."""
        if not self.averages:
            return
        kept = [*hyperparameters(self._main_loop.algorithm), *self._kept_the_same()]
        values = [(f"{variable} (number {i})", variable.get_value(borrow=True)) for i, variable in enumerate(kept)]
        name = f"the model of main loop {self._number}"
        require_same_values(self.worker, name, values, _SAME_MODEL, timeout_s=self.timeout_s)

    def _share(self) -> None:
        if self.averages:
            start_together(self._kept_the_same(), self.worker, "averaged gradients")
        else:
            settings = self.settings
            self.worker.init_shared_params(
                self._parameters(), settings.rule, on_nonfinite=settings.on_nonfinite, timeout_s=self.timeout_s
            )

    def _parameters(self) -> list[Any]:
        given = self.settings.parameters
        return trained_parameters(self._main_loop) if given is None else list(given)

    def _kept_the_same(self) -> list[Any]:
        """Return what averaged gradients keep the same: parameters, and what the step rule keeps."""
        return [*self._parameters(), *step_rule_state(self._main_loop.algorithm)]

    # Training.

    def batch_done(self) -> None:
        """Count a batch, and end with the job."""
        status = self._main_loop.status
        self.worker.progress(steps=1, epoch=status["epochs_done"] + 1)
        if not self.lockstep and self.worker.should_stop:
            self.request_finish()

    def request_finish(self) -> None:
        """Let the main loop end after this batch or epoch."""
        self._main_loop.log.current_row["training_finish_requested"] = True

    def synchronize(self) -> None:
        """Apply the rule once, if there is one."""
        if self.worker.shares:
            self.worker.sync_params(timeout_s=self.timeout_s)

    @contextlib.contextmanager
    def center(self) -> Iterator[None]:
        """Within the ``with`` block the parameters have the values that count: those of the center.

        Statistics stay what they are: averaged when the workers met in this batch, otherwise this worker's own, which
        fit the center better than averages that belong to the parameters of an earlier meeting.
        """
        self._tell_of_own_statistics()
        if self.worker.closed:
            yield
        else:
            with self.worker.center_params(timeout_s=self.timeout_s):
                yield

    def _tell_of_own_statistics(self) -> None:
        done = self._main_loop.status["iterations_done"]
        if self._told_of_own or self.finished or done == self._averaged_at or self._averaged_at is None:
            return
        if collected_statistics(self._main_loop.algorithm):
            self._told_of_own = True
            log.warning(
                "rank %d: what is saved or evaluated now has the population statistics of BatchNormalization of this "
                "worker alone, as the workers averaged theirs last after batch %d: put Checkpoint and "
                "DataStreamMonitoring behind DistributedMonitoring, with the same triggers",
                self.worker.global_rank,
                self._averaged_at,
            )

    # Meetings.

    def meet(self, where: str, vote: Vote = Vote.NO) -> Meeting | None:
        """Wait until the main loops of all workers have come here.

        Parameters
        ----------
        where : str
            What they come for.
        vote : Vote
            What this one says to stopping.

        Returns
        -------
        Meeting or None
            None if another main loop has ended, and this one shall end too.

        Raises
        ------
        ConfigurationError
            If others came for something else.
        CollectiveTimeoutError
            If some did not come in time; the message names them.
        """
        rank = self.worker.global_rank
        while True:
            summed, ranks = self.worker.sum_pairs(
                f"meeting of main loop {self._number}",
                {f"{rank} {where}": (float(vote), 1.0)},
                timeout_s=self.timeout_s,
            )
            votes = {int(key.partition(" ")[0]): said for key, (said, _) in summed.items()}
            places = {int(key.partition(" ")[0]): key.partition(" ")[2] for key in summed}
            self.members = ranks
            if len(set(places.values())) == 1:
                if self.started:
                    self._require_same_model()
                return Meeting(ranks, {r for r, said in votes.items() if said}, Vote.END in votes.values())
            if _FINISH not in places.values():
                raise ConfigurationError(_at_different_places(places))
            if self._stops_together and where != _FINISH:
                self.request_finish()
                return None
            if not self._stops_together and where == _FINISH:
                return None
            # Otherwise the others come to the end too, or those at the end leave.

    # The end.

    def average_statistics(self) -> None:
        """Average what is not trained but collected: BatchNormalization's population statistics."""
        self._averaged_at = self._main_loop.status["iterations_done"]
        statistics = collected_statistics(self._main_loop.algorithm)
        if not statistics:
            return
        values = [variable.get_value() for variable in statistics]
        summed = self.worker.sum_arrays(f"statistics of main loop {self._number}", values, timeout_s=self.timeout_s)
        for variable, value, total in zip(statistics, values, summed.arrays):
            variable.set_value((total / len(summed.ranks)).astype(value.dtype))

    def finish(self) -> None:
        """End together if the others end too, with the center's values in the parameters; leave the job otherwise."""
        if self.worker.closed or self.finished:
            return
        self.finished = True
        try:
            self.synchronize()  # what was learned since the last time is not lost
            together = self.meet(_FINISH)
        except (CollectiveTimeoutError, WorkerLostError) as error:  # the others still train, or the controller is gone
            log.warning("rank %d leaves the job without waiting any longer: %s", self.worker.global_rank, error)
            together = None
        if together is None:
            self._leave(self.timeout_s)
            return
        self.average_statistics()
        if self.worker.shares:
            self.worker.copy_to_local(timeout_s=self.timeout_s)
        if not self.averages:
            self.worker.release_shared_params(timeout_s=self.timeout_s)

    def abandon(self, error: BaseException) -> None:
        """Leave the job after an error, so that nobody waits for this worker; what is saved then is the center."""
        if self.worker.closed or self.finished:
            return
        if self.lockstep and isinstance(error, PlatoonError):
            log.error(
                "rank %d: these workers process each batch together, and one of them did not come to the next. If none "
                'has died, see that all have as many: shard_stream(stream, uneven="drop"), the same extensions',
                self.worker.global_rank,
            )
        self.finished = True
        try:
            self._leave(_LEAVING_TIMEOUT_S)
        except PlatoonError as error:  # the one that the main loop reports comes first
            log.warning("rank %d left the job without the center's values: %s", self.worker.global_rank, error)

    def _leave(self, timeout_s: float) -> None:
        try:
            if self.worker.shares:
                self.worker.copy_to_local(timeout_s=timeout_s)
        finally:
            self.worker.close()


def _at_different_places(places: dict[int, str]) -> str:
    told = "; ".join(f"worker {rank} is at {where}" for rank, where in sorted(places.items()))
    return (
        f"the main loops of this job are at different places: {told}. Give all workers the same extensions with the "
        'same triggers, and as many batches in an epoch: shard_stream(stream, uneven="drop")'
    )
