"""A worker's parameters and their center: synchronize, copy, swap, keep NaN and infinities out."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.base import Center, CenterFactory, NonFiniteElement
from platoon_base.channels.call_lock import CallLock
from platoon_base.checkpoints.files import Checkpoint, require_alike
from platoon_base.coordination import messages as msg
from platoon_base.device_arrays import is_device_array, memory_order
from platoon_base.devices.isolation import some_names, warn_if_not_on_device
from platoon_base.dtypes import Array
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, NonFiniteError, PlatoonError
from platoon_base.layout import Layout
from platoon_base.parameters import Borrowed, Parameters, assign
from platoon_base.rules.center import (
    Adopt,
    Rule,
    arguments_of,
    average_of,
    form_of,
    gossips,
    member,
    precise_enough,
    require_rule,
    settings_of,
    shares_moments,
)
from platoon_base.rules.outer import overlap_of, step_form_of, waits
from platoon_base.shm.phases import SYNC
from platoon_base.system.process import awake
from platoon_base.system.warn import warn_once
from platoon_base.timeouts import timeout
from platoon_base.worker.checked_layout import CheckedLayout, UnchangedWatch
from platoon_base.worker.connection import Connection
from platoon_base.worker.divergence import DivergenceWatch
from platoon_base.worker.rounds import WorkerRounds, await_latest_round

log = logging.getLogger(__name__)

ON_NONFINITE = ("raise", "skip", "restore")
# With a rule's defaults for one worker, the last remaining worker would almost swap its values with
# the center's.
_MIN_WORKERS = 2
# Each sample of values on a device waits for queued work, so samples are rare.
_DEVICE_POLL_INTERVAL_S = 1.0


class SharedParameters:
    """Parameters, their rule and their center; a single worker has none, so calls do nothing.

    The first ``watched`` parameters are trained; the others are moments, which warnings ignore.
    """

    def __init__(
        self, connection: Connection, parameters: Parameters, rule: Rule, on_nonfinite: str, watched: int
    ) -> None:
        require_on_nonfinite(on_nonfinite)
        self.parameters, self._layout = parameters, CheckedLayout(parameters.layout)
        self.center: Center | None = None
        self.rounds: WorkerRounds | None = None
        of_center, of_job = (max(_MIN_WORKERS, count) for count in connection.num_live)
        self._given, self._workers = rule, (of_center, of_job)
        self._rule, self._adopting = _resolved(rule, self._workers), Adopt(rule)
        self._on_nonfinite = on_nonfinite
        self._connection = connection
        self._rank = connection.identity.rank
        self._progress, self._clock = connection.progress, connection.progress.clock
        self._alone = connection.is_single_worker
        self._turns = connection.turns
        self._call_lock = CallLock()
        self._watched = slice(watched)
        names = [spec.name for spec in parameters.layout.specs[self._watched]]
        # The watch waits for 30 mini-batches or more, since gradients may be accumulated.
        patience = max(3, -(-30 // member(rule, "period")))
        self._unchanged_watch = UnchangedWatch(names, self._rank, patience, parameters.frozen)
        self._watch = DivergenceWatch(self._rank)
        self._unlink: Callable[[], None] | None = None
        # Synchronizations of this training, and of earlier ones.
        self.count = self._before = 0

    def continue_count(self, before: int) -> None:
        """Start the count at the job's position, if this worker has resumed or is late."""
        identity, steps = self._connection.identity, self._progress.steps
        self._before = before
        if identity.late:
            self.count = int(self._connection.job_state.table["steps"].max())
        elif not before and steps == identity.resume_at.steps:
            self.count = steps

    def give_notice(self) -> None:
        notice = member(self._rule, "notice")()
        if notice and not self._rank and not self._alone():
            log.info("%s", notice)

    def open_center(self, centers: CenterFactory, timeout_s: float) -> None:
        """Create the center, or attach to it, as the controller decides."""
        with self._turns.take(f"open {settings_of(self._rule)}", timeout_s, self.finish):
            try:
                self._open_center(centers, timeout_s)
            except CollectiveTimeoutError as exc:
                if self._rank == self._connection.identity.local_rank:
                    raise  # The values are those of this host.
                raise CollectiveTimeoutError(
                    f"waited {timeout_s:g} s for the initial values of host 0: its workers must "
                    "share their parameters too, with the same call. Read the logs of host 0, or "
                    "pass a longer timeout_s"
                ) from exc

    def _open_center(self, centers: CenterFactory, timeout_s: float) -> None:
        layout, rule = self.parameters.layout, self._rule
        client, checkpoint = self._connection.client, self._connection.checkpoint
        specs = [(spec.name, spec.shape, spec.dtype) for spec in layout.specs]
        request = msg.InitCenter(
            specs=specs,
            rule=type(rule).__name__,
            moments=layout.moments,
            settings=settings_of(rule),
            arguments=arguments_of(self._given),
            location=centers.location,
        )
        role = client.ask(request, msg.CenterRole, timeout_s)
        create = role.create
        try:
            states = self._resume(checkpoint()) if role.resume and checkpoint is not None else []
            self.center = (centers.create if create else centers.attach)(layout, rule, self._rank)
            self._watch = DivergenceWatch(self._rank, _DEVICE_POLL_INTERVAL_S if self.center.on_device else 0.0)
            if self.center.on_device:
                self._connection.finish_queued = functools.partial(_finish_in, threading.get_ident(), self.finish)
                of_devices: Any = self.center
                copied = self.parameters.share_on_device(of_devices.orders)
                if copied:
                    warn_once(
                        f"each synchronization copies {some_names(copied)} on the device, twice: they are slices of "
                        "larger tensors, or have another memory_format than on the worker that made the center"
                    )
            if waits(rule):
                of_rounds: Any = self.center
                self.rounds = WorkerRounds(client, of_rounds, self._rule_for, self._turns, self._progress)
            if create:
                self.center.fill(self._borrow_as_shared(), states)
                ready = client.ask(msg.CenterReady(), (msg.Done, msg.CenterRole), timeout_s)
                self._unlink = centers.unlink
                # If the reply is a role, the center has been filled with another host's values.
                if isinstance(ready, msg.CenterRole):
                    self._take_over(self.center, timeout_s)
            else:
                self._take_over(self.center, timeout_s)
        except BaseException as exc:
            self.close()
            if create:
                # The controller may be lost, or may have the first report: the cause counts.
                with contextlib.suppress(PlatoonError):
                    client.ask(msg.CenterReady(error=repr(exc)), msg.Done, timeout("answer"))
            raise

    def _resume(self, checkpoint: Checkpoint) -> list[list[Array]]:
        """Copy the checkpoint's center to the parameters; return the saved states of the rule."""
        require_alike(checkpoint.about, self.parameters.layout, self._rule)
        arrays, values_of = self.parameters.borrow(), checkpoint.center
        average = average_of(self._rule)
        # A single worker averages nothing: it continues from the average, which was validated.
        if average is not None and self._alone():
            trained = self.parameters.layout.num_trained
            values_of = [*checkpoint.states[average][:trained], *checkpoint.center[trained:]]
        for array, values in zip(arrays, values_of):
            array[...] = values
        self.parameters.give_back(arrays)
        return checkpoint.states

    def _take_over(self, center: Center, timeout_s: float, averaged: bool = False) -> None:
        with self._call_lock.take("copy_to_local", timeout_s) as left_s, self._clock.phase(SYNC):
            arrays = self._borrow_as_shared()
            with self._turns.take("read", timeout_s, self.finish):
                center.read(arrays, True, left_s, begin=True, averaged=averaged)
            self.parameters.give_back(arrays)

    def sync(
        self,
        given: Sequence[Any] | None = None,
        *,
        synchronous: bool = True,
        part: float = 1.0,
        whole: bool = False,
        timeout_s: float,
    ) -> None:
        """Apply the rule to the parameters, or to ``given`` arrays, which the caller then makes their values."""
        center = self.center
        if center is None:
            return
        name = "sync_params" if given is None else "sync_arrays"
        with self._call_lock.take(name, timeout_s) as timeout_s, self._clock.phase(SYNC):
            arrays = self._borrow() if given is None else given
            if given is None:
                self._unchanged_watch.before_sync(arrays[self._watched])
            try:
                self._layout.require(arrays, center)
                began = time.perf_counter()
                alone, rounds = self._alone(), self.rounds
                self.count += 1
                rule: Any = self._adopting if alone else self._rule_for(self._connection.num_live[0])
                overlaps = not alone and overlap_of(rule) > 0
                # Rounds that overlap are judged when they complete.
                judged = not alone and (not overlaps or self.round_under_way)
                with _on_host(arrays, center) as taken:
                    if judged:
                        self._watch.before_sync(taken[self._watched], rule)
                    if rounds is not None and not alone:
                        refused = rounds.make(taken, part, timeout_s, overlaps and not whole)
                    else:
                        if rounds is not None:  # The other workers have left meanwhile.
                            rounds.complete(taken, timeout_s)
                        with self._turns.take("sync", timeout_s, self.finish):
                            refused = center.sync(rule, taken, synchronous or alone, timeout_s)
                            self._progress.count_sync(began, center.whole, made=getattr(center, "has_made_all", None))
                    if judged:
                        self._watch.after_sync(taken[self._watched], rule)
                    if refused is not None:
                        self._handle_nonfinite(refused, taken, timeout_s)
            finally:
                if given is None:
                    self.parameters.give_back(arrays)
            if given is None:
                self._unchanged_watch.after_sync(arrays[self._watched])

    @property
    def round_under_way(self) -> bool:
        return self.rounds is not None and self.rounds.under_way

    def complete_round(self, timeout_s: float, given: Sequence[Any] | None = None) -> None:
        rounds, center = self.rounds, self.center
        if rounds is None or center is None or not rounds.under_way:
            return
        with self._call_lock.take("complete_round", timeout_s) as left_s, self._clock.phase(SYNC):
            arrays = self._borrow() if given is None else given
            self._layout.require(arrays, center)
            try:
                with _on_host(arrays, center) as taken:
                    self._watch.before_sync(taken[self._watched], self._rule)
                    refused = rounds.complete(taken, left_s)
                    self._watch.after_sync(taken[self._watched], self._rule)
                    if refused is not None:
                        self._handle_nonfinite(refused, taken, left_s)
            finally:
                if given is None:
                    self.parameters.give_back(arrays)

    def center_arrays(self) -> list[Array]:
        if gossips(self._given):
            raise ConfigurationError(
                f"{type(self._given).__name__} has no center to read or to change: read the "
                "workers' mean with center_params or copy_to_local, and overwrite all of them "
                "with copy_to_global"
            )
        values = getattr(self.center, "values", None)
        if values is None:
            where = "a single worker has none" if self.center is None else "it is on devices; use --center host"
            raise ConfigurationError(f"the center is not in host memory, where it could be read: {where}")
        return list(values)

    def update_center(self, update: Callable[[list[Array]], object], synchronous: bool, timeout_s: float) -> None:
        values, lock = self.center_arrays(), self._connection.lock
        center: Any = self.center
        across_hosts = center.across_hosts
        if across_hosts is not None and across_hosts.workers_wait:
            raise ConfigurationError(
                "update_center changes the center of this worker's host only, and a rule that waits keeps the centers "
                "of all hosts equal: change the parameters and call copy_to_global, or use a rule that does not wait"
            )
        moved_by_others = across_hosts is not None
        with (
            self._call_lock.take("update_center", timeout_s) as left_s,
            self._clock.phase(SYNC),
            self._turns.take("update", timeout_s, self.finish),
        ):
            began = time.perf_counter()
            if synchronous:
                lock.acquire(left_s)
            try:
                # An update that fails must not change the center.
                new = [value.copy() for value in values]
                old = [value.copy() for value in new] if moved_by_others else []
                update(new)
                self._layout.require(new, self.center)
                for spec, array in zip(self.parameters.layout.specs, new):
                    if not np.isfinite(array).all():
                        raise NonFiniteError(
                            f"rank {self._rank}, step {self._progress.steps}: {spec.name} of the "
                            "center would get a NaN or an infinity, so the center stays unchanged. "
                            "Lower the learning rate, clip gradients, or copy the center to the "
                            "parameters (copy_to_local)"
                        )
                if moved_by_others:
                    center.change(old, new)
                else:
                    for value, array, average in zip(values, new, center.averages or values):
                        np.copyto(average, array, where=array != value)
                        np.copyto(value, array)
            finally:
                if synchronous:
                    lock.release()
            self._progress.count_sync(began, True)

    def _rule_for(self, num_live: int) -> Any:
        workers = max(_MIN_WORKERS, num_live), max(_MIN_WORKERS, self._connection.num_live[1])
        if workers != self._workers:
            self._workers, self._rule = workers, _resolved(self._given, workers)
        return member(self._rule, "at_count")(self.count, self._before)

    def shorten_steps(self) -> str:
        """Halve the factor by which the rule lengthens steps; return a notice for users, or ""."""
        shorter = member(self._given, "shortened")()
        if shorter is self._given:
            return ""
        self._given, self._rule = shorter, _resolved(shorter, self._workers)
        return str(member(self._rule, "notice")())

    def copy_to_local(self, timeout_s: float) -> None:
        """Parameters := center, or its average; with a single worker, center := parameters."""
        if self._alone():
            self.sync(timeout_s=timeout_s)
        elif self.center is not None:
            self.complete_round(timeout_s)
            self._take_over(self.center, timeout_s, averaged=True)
            self._progress.count_copy()

    def copy_to_global(self, timeout_s: float) -> None:
        """Center := parameters; all workers resume at the position of this one."""
        if self.center is not None:
            self.complete_round(timeout_s)
            require_finite(self.parameters.layout, self.parameters.borrow())
            with (
                self._call_lock.take("copy_to_global", timeout_s) as left_s,
                self._clock.phase(SYNC),
                self._turns.take("write", timeout_s, self.finish),
            ):
                self.center.write(self._borrow_as_shared(), True, left_s)
                self._progress.mark_all_synced()
            self._progress.count_copy()
        else:
            self._progress.mark_all_synced()

    def average_hosts(self, timeout_s: float) -> None:
        self.complete_round(timeout_s)
        across_hosts: Any = getattr(self.center, "across_hosts", None)  # None on devices.
        if across_hosts is None:
            return
        if across_hosts.workers_wait:
            await_latest_round(self._connection.client, across_hosts, timeout_s)
            return
        deadline = awake() + timeout_s
        met = self._connection.client.wait_for_all(msg.Round(timeout_s=timeout_s), msg.RoundReached)
        # The hosts may be averaged even if the wait for workers used up the timeout.
        across_hosts.wait(met.number, max(deadline - awake(), min(timeout("stripe"), timeout_s)))

    def enter_center(self, timeout_s: float) -> Callable[[bool], None]:
        """Set the parameters to the center, or its average.

        The result is a function that restores them; with True it keeps the present values.
        """
        if self.center is None or self._alone():
            return lambda keep: None
        self.complete_round(timeout_s)
        with self._call_lock.take("center_params", timeout_s):
            own = self._borrow().copies()

        def leave(keep: bool) -> None:
            if keep:
                return
            with self._call_lock.take("center_params", timeout_s):
                arrays = self._borrow()
                arrays.restore(own)
                self.parameters.give_back(arrays)

        try:
            with self._call_lock.take("center_params", timeout_s) as left_s:
                arrays = self._borrow()
                with self._turns.take("read", timeout_s, self.finish):
                    self.center.read(arrays, True, left_s, averaged=True)
                self.parameters.give_back(arrays)
            del arrays  # A back end copies memory that is still referenced.
        except BaseException:
            leave(False)
            raise
        self._progress.count_copy()
        return leave

    def finish(self) -> None:
        """Wait until this worker's updates have reached the center."""
        if self.center is not None:
            self.center.finish()
            self._progress.mark_made()

    def require_last_sync(self) -> None:
        """Wait for this worker's updates, and raise if a center on a device has refused the last ones."""
        self.finish()
        # "restore" is done by the next synchronization.
        if self.center is not None and self._on_nonfinite != "restore":
            refused = self.center.take_refused()
            if refused is not None:
                self._handle_nonfinite(refused, (), 0.0)

    def settle(self) -> None:
        """Update the controller's copy for the last time, after all workers have finished."""
        if self.center is not None:
            self.center.settle()

    def withdraw(self) -> None:
        """Close a center that no process will open again; its creator removes the name."""
        self._connection.finish_queued = lambda: None
        try:
            if self.center is not None:
                self.center.close(over=True)
        finally:
            if self._unlink is not None:
                self._unlink()

    def close(self) -> None:
        self._connection.finish_queued = lambda: None
        if self.center is not None:
            self.center.close()

    def _borrow(self) -> Borrowed:
        if self.center is None or not self.center.on_device:
            return self.parameters.borrow()
        arrays = self.parameters.borrow_on_device()
        if self._layout.has(arrays):
            return arrays
        if not all(is_device_array(array) and memory_order(array) is not None for array in arrays):
            raise ConfigurationError(
                "a parameter is no longer on the device, or not contiguous: set values with set_value(), which "
                "keeps them there, or launch with --center host"
            )
        return arrays

    def _borrow_as_shared(self) -> Borrowed:
        arrays = self._borrow()
        self._layout.require(arrays, self.center)
        return arrays

    def _handle_nonfinite(self, refused: NonFiniteElement, arrays: Sequence[Any], timeout_s: float) -> None:
        name = self.parameters.layout.specs[refused.parameter].name
        text = (
            f"rank {self._rank}, step {self._progress.steps}: element {refused.element} of {name} "
            "is not finite or would make the center so; it was not added to the center"
        )
        if self._on_nonfinite == "raise":
            raise NonFiniteError(f"{text}. Lower the learning rate, clip gradients, or pass on_nonfinite='restore'")
        log.warning(text)
        if self._on_nonfinite == "restore" and self.center is not None:
            with self._turns.take("restore", timeout_s, self.finish):
                self.center.read(arrays, True, timeout_s, begin=True)
            if self.rounds is not None:
                self.rounds.go_on_from(arrays)


def _resolved(rule: Rule, workers: tuple[int, int]) -> Any:
    """Return a rule with its defaults for the number of workers of this center, and of the job."""
    of_center, of_job = workers
    return member(rule.resolved(of_center), "in_job")(of_job)


def _finish_in(thread: int, finish: Callable[[], None]) -> None:
    """Call ``finish`` in this thread only: a step on the device would wait for work queued behind it."""
    if threading.get_ident() == thread:
        finish()


@contextlib.contextmanager
def _on_host(arrays: Sequence[Any], center: Center) -> Iterator[Sequence[Any]]:
    """Yield the arrays as C-contiguous ndarrays; on devices, unchanged."""
    if center.on_device:
        yield arrays
        return
    taken = [np.asarray(array, order="C") for array in arrays]
    try:
        yield taken
    finally:  # Also after an error: a round may have been completed by then.
        for array, values in zip(arrays, taken):
            if array is not values:
                assign(array, values)


def _require_precision(layout: Layout, rule: Rule) -> None:
    """Raise if the steps of an average would be lost in the dtype of a parameter."""
    for spec in layout.specs[: layout.num_trained] if average_of(rule) is not None else ():
        if not precise_enough([spec.dtype]):
            raise ConfigurationError(
                f"got {rule!r} and {spec.name}, which is of {spec.dtype}: the average of the "
                "center would stop moving, because its steps become too small for half "
                "precision; keep the parameters in float32 (a policy such as mixed_float16 "
                "does), or use EASGD() or CenterMomentum()"
            )


def _checked_moments(rule: Rule, moments: Iterable[Any] | None, rank: int) -> list[Any]:
    """Return the moments as a list; raise, or warn, if they do not fit the rule."""
    found = [] if moments is None else list(moments)
    if found and not shares_moments(rule):
        why = (
            "keeps separate moments on each worker"
            if gossips(rule)
            else "does more than average, and might make second moments negative"
        )
        raise ConfigurationError(
            f"got moments and {rule!r}, which {why}: use "
            "EASGD(moments=True) or LocalSGD(moments=True), or leave moments out"
        )
    if shares_moments(rule) and moments is None:
        log.warning(
            "rank %d: the rule %r shares the moments of the optimizer, and got none: pass them "
            "in your loop, init_shared_params(params, rule, moments=[...]), with [] for an "
            "optimizer without moments",
            rank,
            rule,
        )
    return found


def share(
    connection: Connection,
    params: Iterable[Any],
    rule: Rule,
    on_nonfinite: str,
    timeout_s: float,
    moments: Iterable[Any] | None = None,
    before: int = 0,
) -> SharedParameters:
    """Check the parameters and share them; earlier trainings made ``before`` synchronizations."""
    require_rule(rule)
    if (step_form_of(rule) if waits(rule) else form_of(rule)) is None:
        log.info(
            "rank %d: %s has no form, so NumPy applies it to a center on the host, several times "
            "slower than loops in C: declare its equations for one element, see "
            "platoon_base.rules.Rule",
            connection.identity.rank,
            settings_of(rule) or type(rule).__name__,
        )
    params = list(params) if isinstance(params, Iterator) else params
    states = _checked_moments(rule, moments, connection.identity.rank)
    parameters = Parameters([*params, *states] if states else params, len(states))
    watched = parameters.layout.num_trained
    _require_precision(parameters.layout, rule)
    warn_if_not_on_device(connection.identity.device, params)
    shared = SharedParameters(connection, parameters, rule, on_nonfinite, watched)
    shared.continue_count(before)
    shared.give_notice()
    require_finite(parameters.layout, parameters.borrow())
    if connection.centers is not None:
        connection.require_same_mode("a rule")
        shared.open_center(connection.centers(parameters, rule), timeout_s)
    if connection.identity.size > 1:
        connection.job_state.note_several()
    return shared


def require_on_nonfinite(choice: Any) -> None:
    if choice not in ON_NONFINITE:
        raise ConfigurationError(f"got on_nonfinite={choice!r}: it must be one of {', '.join(ON_NONFINITE)}")


def require_finite(layout: Layout, arrays: Sequence[Array]) -> None:
    """Raise `NonFiniteError`, naming the parameter, unless all values are finite."""
    for spec, array in zip(layout.specs, arrays):
        if not np.isfinite(array).all():
            raise NonFiniteError(
                f"{spec.name} has a NaN or an infinity, which must not enter the center; initialise the model again"
            )
