"""One distributed training: its start, synchronization, collective waits and end."""

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
from platoon_base.rules import Rule, at_period, default_rule, shares_moments
from platoon_base.theano_ops import vary_noise
from platoon_base.timeouts import timeout
from platoon_base.worker import DEFAULT_TIMEOUT_S, Fit, require_same_values, start_training
from platoon_plugins.blocks.data import require_dealt_out
from platoon_plugins.blocks.gradients import averages_gradients, has_averaging_rule, warn_of_sums
from platoon_plugins.blocks.model import Statistics, hyperparameters, moments_of, step_rule_state, trained_parameters
from platoon_plugins.blocks.streams import all_streams, draw_by_rank, is_broadcast

log = logging.getLogger(__name__)

END = "the end of training"


class Vote(enum.IntEnum):
    """A worker's vote on stopping; `END` stops all workers, whatever the policy."""

    NO = 0
    YES = 1
    END = 2


def _at_different_points(points: dict[int, str]) -> str:
    told = "; ".join(f"worker {rank} is at {point}" for rank, point in sorted(points.items()))
    return (
        f"the main loops of this job are at different places: {told}. Give all workers the same extensions with the "
        'same triggers, and as many batches in an epoch: shard_stream(stream, uneven="drop")'
    )


_SAME_MODEL = (
    "averaged gradients keep models the same only if all workers make the same steps: use the "
    "same step rule and learning rate on all of them, and the same extensions that change "
    "parameters or the learning rate"
)
# Short, as the main loop has an error to report.
_numbers = itertools.count(1)


class Settings(NamedTuple):
    """Settings of a training, from the arguments of `ParameterSync`."""

    # None for averaged gradients; "auto" follows the algorithm.
    rule: Rule | str | None
    parameters: Sequence[Any] | None = None
    leader_only: tuple[type, ...] = ()
    on_nonfinite: str = "raise"
    timeout_s: float = DEFAULT_TIMEOUT_S
    worker: Worker | None = None
    # Batches from one synchronization to the next; None if other triggers decide.
    period: int | None = None


class Training(Fit):
    """One run of a main loop on this worker; the extensions of the main loop share it.

    Every main loop makes the same calls of `meet`, and collective calls outside the compiled
    function only follow these. After the end of one main loop the others end at `meet`, or continue
    without it.
    """

    def __init__(self, worker: Worker, main_loop: Any, settings: Settings, policy: str | None) -> None:
        super().__init__(worker, policy=policy or "any", timeout_s=settings.timeout_s)
        self.settings = settings
        self.averages = averages_gradients(main_loop.algorithm)
        # In lockstep the workers process each batch together.
        self.lockstep = self.averages or is_broadcast(main_loop.data_stream)
        # The evaluators whose streams were compared between the workers.
        self.compared: weakref.WeakSet[Any] = weakref.WeakSet()
        # prepared: the user's extensions were adapted. keeps_evaluated: an extension saves, so
        # evaluated parameters are copied.
        self.prepared = self.started = self.keeps_evaluated = False
        # Weak, so that the main loop is freed when the script drops it.
        self._main_loop_ref = weakref.ref(main_loop)
        self._name = f"main loop {next(_numbers)}"
        self._stops_together = policy is not None or self.lockstep
        self._statistics = Statistics(worker, self._name, self.timeout_s)
        self.rule = self._chosen_rule(main_loop.algorithm)
        self._evaluated: list[Any] = []
        # For each sharded monitoring, the workers that contributed batches.
        self._owners: dict[str, set[int]] = {}
        # The value at the latest `meet`, since the leader may change at any time.
        self._led = worker.is_leader

    @property
    def leads(self) -> bool:
        return self.worker.is_leader or self.worker.global_rank == min(self.ranks, default=0)

    @property
    def _main_loop(self) -> Any:
        return self._main_loop_ref()

    def _chosen_rule(self, algorithm: Any) -> Rule | None:
        rule: Any = self.settings.rule
        if self.averages:
            if rule not in ("auto", None):
                raise ConfigurationError(
                    f"got {rule} and an algorithm that averages gradients, which would "
                    "synchronize the workers twice: use ParameterSync(None) with "
                    "AllReduceGradients, or the rule with the plain step rule"
                )
            refuse_on_nonfinite(self.settings.on_nonfinite)
            return None
        if rule in ("auto", None) and has_averaging_rule(algorithm):
            raise ConfigurationError(
                "got a main loop that was created with one worker, which averages nothing, and "
                "then pickled: create it again, and restore the values with Load(path)"
            )
        if rule is None:
            raise ConfigurationError(
                "got neither a rule nor averaged gradients, so each worker would train its own "
                "model: pass a rule, such as ParameterSync(EASGD()), or use the step rule "
                "AllReduceGradients(...)"
            )
        period, chosen = self.settings.period, rule
        if rule == "auto":
            dtypes = [parameter.dtype for parameter in self._parameters()]
            chosen = default_rule(period, dtypes)
        return chosen if period is None else at_period(chosen, period)

    # The start.

    def start(self) -> None:
        """Copy the first worker's values to all, after every `before_training`; collective."""
        main_loop = self._main_loop
        if self.averages:
            warn_of_sums(main_loop.algorithm, self.worker)
        self.ranks = start_training(
            self.worker,
            self._name,
            "main loop",
            values=self._kept_the_same() if self.averages else (),
            settings="averaged gradients",
            rule=self.rule,
            parameters=() if self.averages else self._parameters(),
            moments=moments_of(main_loop.algorithm, self._parameters()) if shares_moments(self.rule) else (),
            on_nonfinite=self.settings.on_nonfinite,
            once_met=lambda ranks: self._compare_main_loops(),
            timeout_s=self.timeout_s,
        )
        self._require_same_model()
        function = getattr(main_loop.algorithm, "_function", None)
        if function is not None:
            vary_noise(function.get_shared(), self.worker.global_rank)
        # All workers may have unpickled the generators of one worker.
        for stream in all_streams(main_loop.data_stream):
            draw_by_rank(stream, self.worker.global_rank)
        self._statistics.start(main_loop)
        if self.worker.resume_at.steps and not main_loop.status["iterations_done"] and not self.worker.global_rank:
            log.warning(
                "this training was at epoch %d, and its main loop starts at the first epoch "
                "again, with the restored parameters: to restore its log, step rule and data "
                "too, run the main loop that Checkpoint saved",
                self.worker.resume_at.epoch,
            )
        self.steps = main_loop.status["iterations_done"]
        self.begin(self.rule, self.settings.period)
        self.started = True

    def _compare_main_loops(self) -> None:
        main_loop = self._main_loop
        status = main_loop.status
        way = "averaged gradients" if self.rule is None else f"{self.rule}"
        self.meet(f"the begin, with {way}, {status['iterations_done']} batches of {status['epochs_done']} epochs done")
        require_dealt_out(main_loop.data_stream, self.worker, self._name, timeout_s=self.timeout_s)

    def _require_same_model(self) -> None:
        """Raise on all workers if averaged gradients have not kept their models equal."""
        if not self.averages:
            return
        kept = [*hyperparameters(self._main_loop.algorithm), *self._kept_the_same()]
        values = [(f"{variable} (number {i})", variable.get_value(borrow=True)) for i, variable in enumerate(kept)]
        require_same_values(self.worker, f"the model of {self._name}", values, _SAME_MODEL, timeout_s=self.timeout_s)

    def _parameters(self) -> list[Any]:
        given = self.settings.parameters
        return trained_parameters(self._main_loop) if given is None else list(given)

    def _kept_the_same(self) -> list[Any]:
        return [*self._parameters(), *step_rule_state(self._main_loop.algorithm)]

    # Training.

    def batch_done(self) -> None:
        self._evaluated = []
        status = self._main_loop.status
        self.worker.progress(steps=1, epoch=status["epochs_done"] + 1)
        self.steps = status["iterations_done"]
        self.complete_round()
        if not self.lockstep and self.worker.should_stop:
            self.request_finish()

    def request_finish(self) -> None:
        self._main_loop.log.current_row["training_finish_requested"] = True

    @contextlib.contextmanager
    def center(self) -> Iterator[None]:
        """Give the parameters the center's values, or those evaluated after this batch."""
        # Statistics stay: without an evaluation after this batch, this worker's own fit the center
        # better than the averages of an earlier evaluation.
        if not self.ended:
            self._statistics.warn_if_own(self._main_loop)
        if self.worker.closed:
            yield
        elif self._evaluated:
            # The center may have changed since the evaluation.
            with _values_in(self._parameters(), self._evaluated):
                yield
        else:
            with super().center():
                yield

    def keep_evaluated(self) -> None:
        """Copy the evaluated values if an extension is to save them."""
        if self.keeps_evaluated and self.worker.advanced.shares:
            self._evaluated = [parameter.get_value() for parameter in self._parameters()]

    def warn_of_missing(self, name: str) -> None:
        missing, self._owners[name] = self._owners.get(name, set()) - set(self.ranks), set(self.ranks)
        if missing and self.worker.global_rank == min(self.ranks):
            log.warning(
                "%s: from now on the batches of rank %s are missing, which only that rank had "
                "(sharded=True): its records, and the best of them, are not comparable with the "
                "earlier ones",
                name,
                ", ".join(map(str, sorted(missing))),
            )

    def meet(self, point: str, vote: Vote = Vote.NO) -> dict[int, int] | None:
        """Wait for all workers at a named point; return their votes, or None if this main loop ends now."""
        # The others then read a center with this worker's contribution.
        if self.worker.advanced.round_under_way:
            self.worker.advanced.complete_round(timeout_s=self.timeout_s)
        votes = self._attend(point, vote)
        led, self._led = self._led, self.leads
        if self._led and not led:
            self.keeps_evaluated = True
            log.warning(
                "rank %d prints and saves from now on, because all lower ranks are lost", self.worker.global_rank
            )
        if votes is not None and self.started:
            self._require_same_model()
        if votes is None and point != END:
            self.request_finish()
        return votes

    def _attend(self, point: str, vote: Vote) -> dict[int, int] | None:
        mine = [self.worker.global_rank, point, int(vote)]
        while True:
            told = self.worker.gather(mine, name=f"meeting of {self._name}", timeout_s=self.timeout_s)
            points = {rank: point for rank, point, _ in told}
            self.ranks = list(points)
            if len(set(points.values())) == 1:
                return {rank: vote for rank, _, vote in told}
            if END not in points.values():
                raise ConfigurationError(_at_different_points(points))
            # A main loop that ends has notified the others at `END`.
            if point != END if self._stops_together else point == END:
                return None
            # Wait again: the remaining main loops either end too, or continue without those that have ended.

    def average_statistics(self) -> None:
        self._statistics.average(self._main_loop)

    # The end.

    def finish(self) -> None:
        """End together with the others, or leave the job; the parameters get the center."""
        if self.ended:
            return
        if self.worker.closed:
            raise ConfigurationError(
                "this worker left the job before its main loop ended, so the parameters are those of one worker: "
                "call close(), or leave the with block of connect(), after main_loop.run()"
            )
        self._evaluated = []
        try:
            together = self.end(self._meet_at_the_end)
        except (CollectiveTimeoutError, WorkerLostError) as error:
            # Others still train, or the controller is lost.
            log.warning("rank %d leaves the job without further waiting: %s", self.worker.global_rank, error)
            together = False
        except KeyboardInterrupt:
            # Blocks has removed its signal handler, but extensions that save must still run.
            log.warning("rank %d was interrupted at its end and no longer waits for others", self.worker.global_rank)
            together = False
        if not together:
            self._leave_job(self.timeout_s)

    def _meet_at_the_end(self) -> list[int] | None:
        if self.meet(END) is None:
            return None
        self.average_statistics()
        return self.ranks

    def leave_after(self, error: BaseException) -> None:
        """Leave the job after an error, without waiting; extensions then save the center."""
        if self.worker.closed or self.ended:
            return
        if self.lockstep and isinstance(error, PlatoonError):
            log.error(
                "rank %d: these workers process each batch together, and one of them did not "
                "reach the next batch. If none has failed, make sure that all have the same "
                'number of batches: shard_stream(stream, uneven="drop"), and the same extensions',
                self.worker.global_rank,
            )
        self.ended, self._evaluated = True, []
        try:
            self._leave_job(timeout("end"))
        except PlatoonError as leaving:
            # The main loop reports the first error.
            log.warning("rank %d left the job without the center's values: %s", self.worker.global_rank, leaving)

    def _leave_job(self, timeout_s: float) -> None:
        try:
            if self.worker.advanced.shares:
                self.worker.copy_to_local(timeout_s=timeout_s)
        finally:
            self.worker.close()


@contextlib.contextmanager
def _values_in(parameters: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    own = [parameter.get_value() for parameter in parameters]
    try:
        for parameter, value in zip(parameters, values):
            parameter.set_value(value)
        yield
    finally:
        for parameter, value in zip(parameters, own):
            parameter.set_value(value)


def refuse_on_nonfinite(choice: str) -> None:
    if choice != "raise":
        raise ConfigurationError(
            f"got on_nonfinite={choice!r} and no rule: averaged gradients send a NaN of one "
            "worker to all others; use RemoveNotFinite() after AllReduceGradients()"
        )
