"""One training of one worker, from its start to its end; adapters call it at their hooks."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.fingerprint import checksum
from platoon_base.parameters import Parameters
from platoon_base.rules.center import Rule
from platoon_base.rules.outer import overlap_of, waits
from platoon_base.schedule import part_is_over, votes_suffice
from platoon_base.system.warn import warn_once
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.divergence import LossWatch
from platoon_base.worker.handle import Worker
from platoon_base.worker.initial_values import Variable, copy_first_values

log = logging.getLogger(__name__)

Part = TypeVar("Part")
Result = TypeVar("Result")


class Hooks:
    """What a framework adds to the steps of a `Fit`."""

    worker: Worker
    timeout_s: float

    def is_ready(self) -> bool:
        """Make the parameters readable; return False to leave a synchronization out."""
        return True

    def values_changed(self) -> None:
        """Adapt parameters that a synchronization or a copy has changed."""

    def marks(self) -> object:
        """Return marks of the values, to find whether the script sets others in the center."""
        return None

    def share_values(self) -> None:
        """Share values that the script has set in the center."""
        self.worker.copy_to_global(timeout_s=self.timeout_s)

    def cast(self) -> None:
        """Send this worker's vote to stop."""
        self.worker.advanced.stop_votes.cast()


class Fit(Hooks):
    """The state of one training; without a rule there is no center, and the order is the same.

    ::

        new ── begin ──> training <── evaluation_begins, enter / leave ──> in the center
        training, in the center ── end ──> ended ── begin ──> training

    All workers make the collective calls in one order: those of `start_training` before `begin`, of
    each `evaluation_begins`, and of `end`. Between them each worker makes any number of steps and votes.
    Nothing is synchronized while the parameters have the center's values.
    """

    # Whether each evaluation begins with a synchronization, as at the end of an epoch.
    syncs_at_evaluations = False

    def __init__(self, worker: Worker, *, policy: str = "any", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.worker, self.policy, self.timeout_s = worker, policy, timeout_s
        self.rule: Rule | None = None
        # Steps from one synchronization to the next; None if the adapter decides.
        self.every_n: int | None = None
        # The ranks at the latest meeting of all workers.
        self.ranks: list[int] = []
        self.steps = self._synced_at = self._evaluated_at = self._longest = 0
        self._validated_at, self._overlap = -1, 0.0
        # synced: the rule was applied before the end. voted: a vote is permanent.
        self.synced = self.voted = self.ended = self._bound = False
        self._leave: Callable[[bool], None] | None = None  # Set while the center is in the parameters.
        self._marks: object = None
        self._all_met = False  # They entered the center together.
        self._losses = LossWatch(worker.global_rank)

    # The start.

    def bind(self) -> None:
        """Wait for all workers, once, which depend on each other from then on.

        Workers of a loop count passes together, so none can be restarted alone, and a resumed job
        gives all the same position. A collective call; `start_training` makes it for others.
        """
        if not self._bound:
            self._bound = True
            self.worker.advanced.meet("the first step of a loop", binds=True, timeout_s=self.timeout_s)

    def begin(self, rule: Rule | None, every_n: int | None = None) -> None:
        """Begin at the present step, once the parameters are shared; see `start_training`."""
        self.rule, self.every_n = rule, every_n
        self._overlap = overlap_of(rule)
        self._synced_at = self._evaluated_at = self.steps
        self._validated_at = -1
        self.synced = self.ended = False
        if self.worker.resume_at.steps:
            self.values_changed()
        if self.voted:
            self.cast()

    # Training.

    @property
    def in_rounds(self) -> bool:
        """Whether all workers synchronize together, in rounds of a rule that waits."""
        return self.rule is not None and waits(self.rule) and self.worker.advanced.shares and not self.ended

    @property
    def is_last_step(self) -> bool:
        """Whether the next step may synchronize, or complete a round."""
        due = self.steps + 1 - self._synced_at >= (self.every_n or 1)
        return due or self.worker.advanced.round_under_way

    def step(self, count: int = 1, arrays: Sequence[Any] | None = None) -> None:
        """Count steps; synchronize if it is due. ``arrays`` are those of `Advanced.served`."""
        self.steps += count
        periods, left = divmod(self.steps - self._synced_at, self.every_n) if self.every_n else (0, 0)
        if periods:
            self.synchronize(arrays)
            self._synced_at -= left
        else:
            self.complete_round(arrays)

    def complete_round(self, arrays: Sequence[Any] | None = None) -> None:
        """Complete a round that overlaps with training after its part of the period."""
        if not self._overlap or not self.worker.advanced.round_under_way:
            return
        if part_is_over(self._overlap, self.steps - self._synced_at, self.every_n or self._longest):
            self.is_ready()
            self.worker.advanced.complete_round(arrays, timeout_s=self.timeout_s)
            self.values_changed()

    def synchronize(self, arrays: Sequence[Any] | None = None, *, whole: bool = False) -> None:
        """Apply the rule; ``whole`` also completes its round."""
        if self.in_center:
            raise ConfigurationError(
                "got a synchronization during an evaluation, while the parameters have the center's values: train "
                "before or after it"
            )
        since, self._synced_at = self.steps - self._synced_at, self.steps
        self._longest = self.every_n or max(self._longest, since)
        shared = self.worker.advanced.served()
        if shared is None or not self.is_ready():
            return
        part = min(1.0, since / self._longest) if self._longest else 1.0
        shared.sync(arrays, part=part, whole=whole, timeout_s=self.timeout_s)
        self.values_changed()
        self.synced |= not self.ended

    def take_loss(self, loss: float) -> None:
        """Shorten steps if the loss of an epoch, equal on all workers, has risen."""
        first = self.worker.global_rank == min(self.ranks, default=0)
        if self.rule is None or not self._losses.epoch_ends(loss, self.rule, tells=first):
            return
        said = self.worker.advanced.shorten_steps()
        if said and first:
            log.warning(
                "rank %d: the training loss is %.4g, more than twice its best, so steps are shortened: %s",
                self.worker.global_rank,
                loss,
                said,
            )

    # Votes to stop.

    @property
    def stops(self) -> bool:
        """Whether the votes suffice, in the middle of an epoch."""
        votes = self.worker.advanced.stop_votes
        return bool(votes.number and votes.voters()) and votes.passed(self.policy, self.ranks)

    def vote(self, wanted: bool = True) -> bool:
        """Vote to stop, once, if it is wanted or the job stops; return whether votes suffice."""
        if (wanted or self.worker.should_stop) and not self.voted:
            self.voted = True
            self.cast()
        return self.stops

    def decide(self, votes: Mapping[int, int], ends: bool) -> bool:
        """Return whether all stop, by the votes of a meeting, or since one of them ``ends``."""
        self.ranks = list(votes)
        return ends or votes_suffice(self.policy, [rank for rank, vote in votes.items() if vote], self.ranks)

    # Evaluation: this is the one place with its order.

    def evaluation_begins(self, meet: Callable[[], Sequence[int] | None]) -> bool:
        """Give all workers' parameters the center's values; a collective call.

        ``meet`` waits for all workers, agrees on state beside the parameters, and returns their
        ranks; None if this training has to end now, and then this returns False.
        """
        self.leave()
        self.end_round()
        ranks = meet()
        if ranks is None:
            return False
        self.ranks = list(ranks)
        self.worker.average_hosts(timeout_s=self.timeout_s)
        self.enter()
        self._all_met = True
        return True

    def evaluate(
        self, own: Callable[[int, int], Part], combine: Callable[[Part, list[int]], tuple[Result, Sequence[int]]]
    ) -> Result:
        """Return what ``combine`` makes of the parts of all workers; a collective call.

        ``own(i, n)`` evaluates part i of n. If a worker leaves, the others evaluate larger parts.
        """
        while True:
            combined, ranks = combine(own(self.ranks.index(self.worker.global_rank), len(self.ranks)), self.ranks)
            if list(ranks) == self.ranks:
                return combined
            self.ranks = list(ranks)

    @contextlib.contextmanager
    def evaluation(self, meet: Callable[[], Sequence[int] | None]) -> Iterator[bool]:
        """Evaluate within the ``with`` block, if its value is true; then return to the values before."""
        within_another = self.in_center
        begun = self.evaluation_begins(meet)
        try:
            yield begun
        except BaseException:
            self._all_met = False  # The error must not wait for the center.
            self.leave()
            raise
        if begun:
            self._validated_at = self.steps
            self.leave()
            if within_another:
                self.enter()

    def end_round(self) -> None:
        """Let the center have the latest steps, before all workers meet."""
        # A worker with fewer batches would otherwise start behind the center, and its next
        # contribution would be ignored. Without a synchronization the center is unchanged.
        new = self._synced_at <= self._evaluated_at < self.steps and not self.ended
        unchanged = new and self.rule is not None and self.every_n is not None
        if unchanged and not self.synced and self.worker.advanced.shares and not self.stops:
            log.warning(
                "rank %d: %d batch%s preceded an evaluation, so every_n_batches=%d is never reached, and the workers "
                "synchronize only at evaluations: make it smaller (sync_every of prepare), or evaluate less often",
                self.worker.global_rank,
                self.steps - self._evaluated_at,
                "" if self.steps - self._evaluated_at == 1 else "es",
                self.every_n,
            )
        behind = self._synced_at < self.steps or not self.synced
        if unchanged or self.in_rounds or (self.syncs_at_evaluations and behind):
            self.synchronize(whole=True)
        self._evaluated_at = self.steps

    @property
    def in_center(self) -> bool:
        return self._leave is not None

    @contextlib.contextmanager
    def center(self) -> Iterator[None]:
        """Give the parameters the center's values within the ``with`` block, at any step."""
        if self.in_center:
            yield
            return
        with self.worker.center_params(timeout_s=self.timeout_s):
            self.values_changed()
            yield

    def enter(self) -> None:
        """Give the parameters the center's values until `leave`, at any step."""
        if self.in_center:
            return
        # At exit a back end may still need to import modules: the latest function is called first.
        if not _in_center:
            atexit.unregister(_leave_all)
            atexit.register(_leave_all)
        shared = self.worker.advanced.shared
        self._leave = (lambda keep: None) if shared is None else shared.enter_center(self.timeout_s)
        if shared is not None:
            _in_center[self.worker] = self
        try:
            self.values_changed()
            self._marks = self.marks()
        except BaseException:
            self._put_back(keep=False)
            raise

    @property
    def has_new_values(self) -> bool:
        """Whether the script has set values in the center."""
        return self.in_center and self.marks() != self._marks

    def leave(self, keep: bool = False) -> None:
        """Return to the worker's own values, unless ``keep``, or the script has set others."""
        if not self.in_center:
            return
        new = not keep and self.worker.advanced.shares and self.has_new_values
        self._put_back(keep or new)
        if new:
            self.share_values()
        elif self._all_met and self.in_rounds and not keep:  # Workers with fewer rounds start there too.
            self.worker.copy_to_local(timeout_s=self.timeout_s)
            self.values_changed()
        self._all_met = False

    def _put_back(self, keep: bool) -> None:
        leave, self._leave, self._marks = self._leave, None, None
        _in_center.pop(self.worker, None)
        if leave is not None:
            leave(keep)

    @staticmethod
    def abandon(worker: Worker) -> None:
        """Clean up after a training that raised in the center; its model keeps those values."""
        if worker in _in_center:
            _in_center[worker].leave(keep=True)

    # The end.

    def end(self, meet: Callable[[], Sequence[int] | None] | None = None) -> bool:
        """Leave the center's values in the parameters, and share them no more; a collective call.

        Without ``meet`` all workers have just evaluated. The result is False if ``meet`` returned
        None: this training has to leave the others.
        """
        self.leave()
        stays = self._validated_at == self.steps and not self.in_rounds
        self.ended = True
        # Without a rule, shared parameters belong to the script.
        shares = self.rule is not None
        if meet is not None:
            if shares and not stays:
                self.synchronize(whole=True)
            ranks = meet()
            if ranks is None:
                return False
            self.ranks = list(ranks)
        if shares and self.worker.advanced.shares:
            self.worker.average_hosts(timeout_s=self.timeout_s)
            self.worker.copy_to_local(timeout_s=self.timeout_s)
            self.values_changed()
        if shares:
            self.worker.release_shared_params(timeout_s=self.timeout_s)
        return True


def _leave_all() -> None:
    """Restore the own values of all workers of this process at exit."""
    for worker, fit in list(_in_center.items()):
        try:
            fit._put_back(keep=False)
        except PlatoonError as exc:
            log.debug("rank %d: the center stays in the model at the end: %s", worker.global_rank, exc)


_in_center: dict[Worker, Fit] = {}


def start_training(
    worker: Worker,
    name: str,
    loop: str,
    *,
    values: Sequence[Variable] = (),
    settings: str = "",
    rule: Rule | None = None,
    parameters: Sequence[Any] = (),
    moments: Sequence[Any] = (),
    on_nonfinite: str = "raise",
    once_met: Callable[[list[int]], None] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[int]:
    """Start a training on all workers together; return the ranks of the participants.

    A collective call before the first batch. Its steps:

    1. It raises `ConfigurationError` on a worker that joined late.
    2. The workers wait for each other, and depend on each other from then on, see `Advanced.meet`.
    3. ``once_met`` is called with the ranks, for the adapter's own collective comparisons.
    4. The first worker's ``values`` are copied to all others, if shapes and ``settings`` are equal.
    5. With a rule, the ``parameters`` are shared; else gradients are averaged. All must agree.
    6. A barrier: no worker changes the center before all have copied it.
    7. The next vote to stop is opened, see `Advanced.stop_votes`.

    ``name`` is the same on all workers; ``loop`` is the framework's word for a training.
    """
    if worker.late:
        raise ConfigurationError(
            f"this worker joined late, and the workers of a {loop} count epochs together from its "
            "start; launch the job with more workers"
        )
    participants = worker.advanced.meet(name, binds=True, timeout_s=timeout_s)
    worker.advanced.announce(bound=True)
    if once_met is not None:
        once_met(participants)
    if values:
        copy_first_values(values, worker, settings, participants, timeout_s=timeout_s)
    if rule is None:
        worker.advanced.begin_averages()
    else:
        worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=on_nonfinite, timeout_s=timeout_s)
    worker.barrier(f"the first batch of {name}", timeout_s=timeout_s)
    worker.advanced.stop_votes.open(worker.advanced.stop_votes.number + 1)
    return participants


def begins_anew(loop: Any, worker: Worker, settings: Any, trains: bool) -> bool:
    """Return whether a call of `prepare` begins another loop; ``trains`` if it has more than loaders."""
    if loop is None or loop.worker is not worker or (loop.begun and trains):
        if worker.late:
            raise ConfigurationError(
                "this worker joined late, and the workers of a loop count passes together from "
                "its start: launch the job with more workers"
            )
        return True
    if loop.settings != settings:
        raise ConfigurationError(
            f"got prepare with {settings} after one with {loop.settings}: pass equal settings in all calls for one loop"
        )
    return False


def passes_before(worker: Worker) -> int:
    """Return how many passes over the data a resumed job has made; the one it was in is repeated."""
    return max(0, worker.resume_at.epoch - 1)


def require_weight(weight: float) -> float:
    """Return a weight as a float; raise `ConfigurationError` if it is negative or not finite."""
    number = float(weight)
    if not (math.isfinite(number) and number >= 0):
        raise ConfigurationError(f"got weight {weight}: pass the number of this worker's rows, 0 or more")
    return number


def warn_if_alike(worker: Worker, gradients: Iterable[Array]) -> None:
    """Warn on rank 0 if the first gradients are equal on all workers; a collective call."""
    mark = 0  # If all are zeros.
    for gradient in gradients:
        if gradient.any():
            mark = checksum(gradient, mark)
    marks = worker.gather(mark, name="first gradients")
    if mark and len(set(marks)) == 1 < len(marks) and not worker.global_rank:
        warn_once(
            f"the first gradients are equal on all {len(marks)} workers, so each trains on the same rows: "
            "pass the loader to prepare too, or divide the rows with worker.shard"
        )


def center_is_on_device(worker: Worker, parameters: Sequence[Any], rule: Rule) -> bool:
    """Return whether a center of these parameters would lie in the memory of devices."""
    centers = worker.advanced.centers
    return centers is not None and centers(Parameters(parameters), rule).location == "device"
