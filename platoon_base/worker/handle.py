"""The handle by which a training loop takes part in a job. Adapters and users' own loops call it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.base import CenterFactory
from platoon_base.channels.array_sums import Summed, sum_arrays
from platoon_base.channels.base import ClientChannel
from platoon_base.channels.client import Session
from platoon_base.collectives.base import Collective
from platoon_base.collectives.groups import CollectiveFactory, Collectives
from platoon_base.collectives.local import LocalFactory
from platoon_base.coordination import messages as msg
from platoon_base.devices.checks import warn_if_not_on_device
from platoon_base.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    WorkerLostError,
)
from platoon_base.metrics import means
from platoon_base.parameters import Parameters
from platoon_base.rules.center import Rule, default_rule, require_rule
from platoon_base.schedule import require_policy
from platoon_base.sharding import START, Position, shard, shard_seed
from platoon_base.shm.job_state import JobState
from platoon_base.shm.stop_votes import StopVotes
from platoon_base.system.environment import TIMEOUT_S
from platoon_base.system.text import legible
from platoon_base.worker.same_data import SAME_DATA_REMEDY, DataSeen, kind_of
from platoon_base.worker.shared_parameters import ReadCheckpoint, SharedParameters, require_finite

__all__ = ["DEFAULT_TIMEOUT_S", "Lock", "Place", "Worker"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


def _default_timeout_s() -> float:
    text = os.environ.get(TIMEOUT_S, "300")  # as long as a cold compilation on a busy machine may take
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"got PLATOON_TIMEOUT_S={text!r}: it must be a positive number of seconds")
    return seconds


DEFAULT_TIMEOUT_S = _default_timeout_s()
_LOOK_S = 0.5


class Place(NamedTuple):
    """What this process is told about itself when it joins."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    seed: int
    device: str
    late: bool = False
    resume_at: Position = START
    kept: Mapping[str, bytes] = MappingProxyType({})


class Lock(NamedTuple):
    """How the advisory lock of the job is tried and freed."""

    try_acquire: Callable[[], bool]
    release: Callable[[], None]


class Worker:
    """One of the cooperating processes of a job.

    `platoon_base.connect` makes it. All calls that wait take ``timeout_s``, in seconds; the environment variable
    ``PLATOON_TIMEOUT_S`` sets the default, 300, which also holds for waits within compiled functions.

    Parameters
    ----------
    place : Place
    channel : ClientChannel
        To the controller.
    job_state : JobState
    centers : callable or None
        Chooses what opens the center for parameters and a rule. None in a job of one: parameters are shared with
        nobody, and synchronizing does nothing.
    lock : Lock
    controller_alive : callable
    on_close : callable
        Called once, at the end of `close`.
    collectives : callable, optional
        Makes, from the session, what forms the groups for collectives on arrays; left out in a job of one.
    checkpoint : callable, optional
        Reads the checkpoint that the job was resumed from.

    Attributes
    ----------
    global_rank, global_size : int
        This worker's number and the number of workers of the job.
    local_rank, local_size : int
        The same, counted on this host.
    device : str
        What the launcher gave this worker to compute on, such as ``"cpu"`` or ``"cuda0"``.
    late : bool
        Whether it joined a job that was launched before, and has no part in collective calls on arrays.
    seed : int
        Common to all workers; `shard_seed(worker.seed, worker.global_rank)` is this worker's own.
    resume_at : Position
        Where to go on: at the latest synchronization of this rank, if it was started again or the job was resumed
        (`platoon launch --max-restarts`, ``--resume``); all zeros in a new job.
    stop_reason : str
        Why the job stops; empty while it does not.
    stop_votes : StopVotes
        Votes to stop a part of the job, such as one training of several, seen at the price of a memory access.
    """

    def __init__(
        self,
        place: Place,
        channel: ClientChannel,
        job_state: JobState,
        centers: Callable[[Parameters, Rule], CenterFactory] | None,
        lock: Lock,
        controller_alive: Callable[[], bool] = lambda: True,
        on_close: Callable[[], None] = lambda: None,
        collectives: Callable[[Session], CollectiveFactory] | None = None,
        checkpoint: ReadCheckpoint | None = None,
    ) -> None:
        self.global_rank, self.global_size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self.seed, self.device = place.seed, place.device
        self.late = place.late
        self.resume_at = place.resume_at
        self._kept = dict(place.kept)
        self.stop_votes = StopVotes(job_state, place.rank)
        self._job_state = job_state
        self._row = job_state.row(place.rank)
        self._control = Session(channel, place.rank, self._row)
        self._arrays = Collectives(collectives(self._control) if collectives else LocalFactory(), place.late)
        self._centers = centers
        self._checkpoint = checkpoint
        self._lock = lock
        self._times_locked = 0
        self._controller_alive = controller_alive
        self._on_close = on_close
        self._next_look = 0.0
        self._shared: SharedParameters | None = None
        self._sharings = 0
        self._data_seen = DataSeen(place.resume_at)
        self._pid = os.getpid()
        self._closed = False

    # Parameters.

    def init_shared_params(
        self,
        params: Iterable[Any],
        rule: Rule | None = None,
        *,
        on_nonfinite: str = "raise",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Share parameters with the other workers; call it once, before the first step and after loading weights.

        The first worker's values become the center; all others take the center's values over. After
        `release_shared_params` it may be called again, with other parameters and another rule.

        In a job of one launched worker no rule changes the parameters: each synchronization copies them to the center,
        until another worker joins late.

        Parameters
        ----------
        params : list of Theano shared variable, GpuArray or ndarray
            Of float dtypes; the same number, order, names, shapes and dtypes on every worker.
        rule : Rule, optional
            Such as ``EASGD(alpha=0.5)``. The default is `platoon_base.rules.default_rule`.
        on_nonfinite : {"raise", "skip", "restore"}
            When a NaN or an infinity of this worker was kept out of the center: raise `NonFiniteError`, warn, or
            warn and take the center over.
        timeout_s : float
            Bound on the wait for the worker that creates the center.

        Raises
        ------
        ConfigurationError
            If something in the arguments cannot work, or parameters are shared already.
        LayoutMismatchError
            If another worker shares other parameters; the job goes on without this worker's.
        NonFiniteError
            If a value is not finite to begin with.
        """
        self._require_open()
        if self._shared is not None:
            raise ConfigurationError(
                "parameters are shared already: call init_shared_params once, or release_shared_params on every worker "
                "before it is called again"
            )
        rule = default_rule() if rule is None else rule
        require_rule(rule)
        params = list(params) if isinstance(params, Iterator) else params
        # Alone no rule is at work: it is when a second worker has come.
        parameters, resolved = Parameters(params), rule.resolved(max(2, self.global_size))
        warn_if_not_on_device(self.device, params)
        shared = SharedParameters(
            parameters, resolved, None, on_nonfinite, self.global_rank, self._row, self._shares_alone
        )
        require_finite(parameters.layout, parameters.borrow())
        if self._centers is not None:
            shared.open_center(self._session, self._centers(parameters, resolved), timeout_s, self._checkpoint)
        if self.global_size > 1:  # and not refused
            self._job_state.note_several()
        self._shared = shared
        self._sharings += 1

    def release_shared_params(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Undo `init_shared_params`: the parameters keep their values, and nothing synchronizes them any more.

        A collective call: it waits for every worker that still takes part, whether it shares parameters or not. Workers
        that died meanwhile are not waited for. When it raises, the parameters are still shared.

        Raises
        ------
        CollectiveTimeoutError
            If some workers did not call it within ``timeout_s``; the message names them.
        """
        shared = self._shared
        # A late joiner without parameters may be at a place that the others passed long ago.
        passes = shared is None
        if shared is not None:
            shared.finish()
        self._session.reduce("release_shared_params", {}, timeout_s, late_pass=passes)
        if shared is not None:
            shared.settle()  # the controller reads the center once more before it is dropped
        self._session.reduce("drop the center", {}, timeout_s, late_pass=passes, drops_center=not passes)
        self._shared = None
        if shared is not None:
            shared.withdraw()
        # The name is free before anybody makes the next center under it.
        self._session.reduce("released shared params", {}, timeout_s, late_pass=passes)

    @property
    def shares(self) -> bool:
        """Whether there is a center to synchronize with: not in a job of one, nor before `init_shared_params`."""
        return self._shared is not None and self._shared.center is not None

    @property
    def sharing(self) -> int:
        """Number of the call of `init_shared_params` whose parameters are shared, 1 for the first; 0 if none are."""
        return 0 if self._shared is None else self._sharings

    def sync_params(self, synchronous: bool = True, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Apply the rule once between the parameters and the center.

        Parameters
        ----------
        synchronous : bool
            Lock each stripe of the center while it is updated. False may lose a part of simultaneous updates.

        Raises
        ------
        NonFiniteError
            If a value that was not finite had to be kept out of the center and ``on_nonfinite="raise"``.
        WorkerLostError
            If the controller is gone.
        """
        shared = self._require_shared()
        self._require_controller()
        shared.sync(synchronous, timeout_s)

    def sync_arrays(
        self, arrays: Sequence[Any], synchronous: bool = True, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Like `sync_params`, on values that are about to become the parameters'.

        Parameters
        ----------
        arrays : sequence of ndarray or GpuArray
            C-contiguous, one for each shared parameter, with its shape and dtype; changed in place.
        """
        shared = self._require_shared()
        self._require_controller()
        shared.sync_arrays(arrays, synchronous, timeout_s)

    def copy_to_local(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Take the center's values over: parameters := center."""
        self._require_shared().copy_to_local(timeout_s)

    def copy_to_global(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Overwrite the center: center := parameters.

        With `init_shared_params` it also puts the parameters of synchronous training into the job's checkpoints: the
        first worker calls it now and then, and a resumed job goes on from there on all workers.
        """
        self._require_shared().copy_to_global(timeout_s)
        self._job_state.mark_all_synced(self._row)

    @contextlib.contextmanager
    def center_params(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[None]:
        """Within the ``with`` block the parameters have the center's values; afterwards their own again.

        Without shared parameters, or in a job of one, nothing changes.
        """
        self._require_open()
        if self._shared is None:
            yield
        else:
            with self._shared.center_values(timeout_s):
                yield

    def require_same(self, name: str, fingerprint: str, remedy: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise if this fingerprint differs from the first that a worker gave under the name; waits for nobody.

        The controller keeps the first fingerprint of each name, so late joiners and workers that are started again are
        compared too. A call costs a message.

        Parameters
        ----------
        name : str
            Of what is compared, such as ``"the data of shard call 2"``: it is in the error. Each thing needs its own.
        fingerprint : str
            A short text that differs if the things differ. The error shows both.
        remedy : str
            What the user shall do about a difference: a sentence, with which the error ends.

        Raises
        ------
        ConfigurationError
            If another worker has given another fingerprint under this name; only on the worker that came later.
        """
        self._session.ask(msg.Same(name=name, fingerprint=fingerprint, remedy=remedy), msg.Done, timeout_s)

    def require_same_data(self, *data: Any, kind: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise if another worker has passed other data, such as a random split of its own; waits for nobody.

        New data cost a message and a look at a sample of their rows; data that came before cost the look alone. Data
        sets of one kind are counted, so all workers must first pass them in the same order. Workers of a resumed job
        that go on at different places are not compared, nor are data that draw random numbers whenever they are read.
        A job of one compares nothing, and neither does a worker that joined late or has left.

        Parameters
        ----------
        *data : array or sequence
            All the rows, not a shard.
        kind : str, optional
            What the data are, for a person. The default tells dtype and shape of a row.

        Raises
        ------
        ConfigurationError
            If the data differ; only on the worker that came later.
        """
        if self.global_size == 1 or self.late or self._closed or os.getpid() != self._pid:
            return
        told = self._data_seen.tell(data, kind_of(*data) if kind is None else kind)
        if told is not None:
            self.require_same(*told, SAME_DATA_REMEDY, timeout_s=timeout_s)

    # Collective calls: every worker makes them, in the same order.

    def barrier(self, name: str = "barrier", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until every worker that still takes part has come here.

        Raises
        ------
        CollectiveTimeoutError
            If some did not within ``timeout_s``; the message names them.
        """
        self._session.reduce(f"barrier {name}", {}, timeout_s, late_pass=True)

    def meet(self, name: str, *, binds: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[int]:
        """Wait until every worker has come here, and return the ranks that have, the same list on all of them.

        Unlike at a `barrier`, a late joiner waits here for the others, who from then on wait for it too. With ``binds``
        these workers need each other from now on: the launcher does not start one of them again alone.
        """
        return self._session.reduce(f"meet {name}", {}, timeout_s, binds=binds).ranks

    def agree_to_stop(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Tell whether to stop, with the same answer on every worker: all of them call it, once a round.

        `should_stop` may turn true for one worker earlier than for another, so a loop that makes collective calls must
        not be left by it. Vote with `request_stop` before.
        """
        return bool(self._session.reduce("agree_to_stop", {}, timeout_s).stop)

    def reduce_metrics(
        self, pairs: Mapping[str, tuple[float, float]], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, float]:
        """Average over all workers, exactly: the sums divided by the weights' sum.

        Parameters
        ----------
        pairs : mapping of str to (sum, weight)
            The weighted sum of this worker's values and the sum of its weights, usually a number of samples.

        Returns
        -------
        dict of str to float
            The mean of each name over all workers; NaN where all weights are 0.

        Raises
        ------
        CollectiveTimeoutError
            If some workers did not call it within ``timeout_s``; the message names them.
        """
        plain = {name: (float(total), float(weight)) for name, (total, weight) in pairs.items()}
        return means(self.sum_pairs("reduce_metrics", plain, timeout_s=timeout_s)[0])

    def sum_pairs(
        self, name: str, pairs: dict[str, tuple[float, float]], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tuple[dict[str, tuple[float, float]], list[int]]:
        """Add ``{name: (sum, weight)}`` over all workers; returns the sums, and the ranks that contributed to them."""
        reply = self._session.reduce(name, pairs, timeout_s)
        return reply.pairs, reply.ranks

    def sum_arrays(
        self,
        name: str,
        arrays: Sequence[Any],
        pairs: Mapping[str, tuple[float, float]] | None = None,
        *,
        late_pass: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Summed:
        """Add small arrays over all workers that still take part, such as the states of metrics.

        Unlike `all_reduce`, which needs all workers that were launched, it goes on without those that left or died. It
        passes through the controller, in one round trip up to 512 KiB.

        Parameters
        ----------
        name : str
            The same on every worker.
        arrays : sequence of ndarray
            Of real dtypes; the same number and shapes on every worker.
        pairs : mapping of str to (sum, weight), optional
            Added in the same round trip; see `sum_pairs`.
        late_pass : bool
            Let a worker that came later and has not met the others yet pass: it gets its own values back.
        timeout_s : float
            Bound on the wait for the others, and on that for each further 512 KiB.

        Returns
        -------
        Summed
            ``arrays``, new ones of float64 with the shapes given, ``pairs``, ``ranks`` that contributed, and ``stop``,
            the reason why the job stops; the same bits on every worker. Added in float64, in the order of the ranks.

        Raises
        ------
        LayoutMismatchError
            On every worker, if they passed different shapes; the message tells who passed what.
        CollectiveTimeoutError
            If some workers did not call it in time; the message names them.
        """
        return sum_arrays(self._session, name, arrays, pairs, timeout_s, late_pass=late_pass)

    # Collective calls on arrays.

    def all_reduce(self, array: Any, op: str = "sum", dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Combine the arrays of all workers element by element.

        Parameters
        ----------
        array : ndarray or GpuArray
            Of the same shape and dtype on every worker: float16/32/64, int8/32/64 or uint8.
        op : {"sum", "prod", "max", "min", "mean"}
            Or one of the original Platoon's names, such as ``"+"`` and ``"maximum"``.
        dest : array like ``array``, optional
            Where the result goes, the array itself if it is to be changed in place; a new array by default.

        Returns
        -------
        array
            ``dest``, or the new one, the same bits on every worker. A GpuArray is ready for whatever is queued next.

        Raises
        ------
        WorkerLostError
            If a worker left or died, and will not make this call.
        CollectiveTimeoutError
            If some worker did not make it in time.
        """
        return self._group(array, timeout_s).all_reduce(array, op, dest, timeout_s=timeout_s)

    def broadcast(self, arrays: Sequence[Any], root: int = 0, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Copy the arrays of one worker into those of all others.

        Parameters
        ----------
        arrays : sequence of ndarray or GpuArray
            Changed in place.
        root : int
            The worker's place among those that take part, 0 for the lowest rank.
        """
        self._require_open()
        if hasattr(arrays, "dtype"):
            raise ConfigurationError("got one array: pass a list, even of one")
        for array in arrays:
            self._group(array, timeout_s).broadcast(array, root, timeout_s=timeout_s)

    def all_gather(self, array: Any, dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Stack the arrays of all workers, in the order of their ranks: ``shape`` becomes ``(workers, *shape)``."""
        return self._group(array, timeout_s).all_gather(array, dest, timeout_s=timeout_s)

    def reduce_scatter(
        self, array: Any, op: str = "sum", dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Any:
        """Combine as `all_reduce` does, and keep this worker's part: ``(workers, *shape)`` becomes ``shape``."""
        return self._group(array, timeout_s).reduce_scatter(array, op, dest, timeout_s=timeout_s)

    # Data.

    def shard(self, data: Any, *, shuffle: bool = False, epoch: int = 0, uneven: str = "keep") -> Any:
        """Return this worker's part of the data.

        Parameters
        ----------
        data : int, array, sequence or other iterable
            A number of rows gives the indices of this worker's rows; an array or a sequence gives those rows; any other
            iterable gives every N-th of its items.
        shuffle, epoch, uneven
            See `platoon_base.sharding.epoch_indices`; the permutation is drawn from the job's seed and ``epoch``.

        Raises
        ------
        ConfigurationError
            If another worker has passed other data, see `require_same_data`, or "drop" leaves no rows.
        """
        if hasattr(data, "__len__"):
            self.require_same_data(data)
        return shard(
            data, self.global_rank, self.global_size, shuffle=shuffle, seed=self.seed, epoch=epoch, uneven=uneven
        )

    @property
    def shard_seed(self) -> int:
        """A seed unlike that of every other worker, for dropout and the like."""
        return shard_seed(self.seed, self.global_rank)

    # Progress and decisions.

    def progress(self, *, steps: int = 0, epoch: int | None = None, loss: float | None = None) -> None:
        """Tell those who watch how far this worker is; costs a few memory accesses.

        Parameters
        ----------
        steps : int
            Number of mini-batches done since the last call; tell them before the synchronization that follows them,
            for what is synchronized last is where a worker goes on after a restart, see `resume_at`.
        epoch : int, optional
            That these mini-batches belong to.
        loss : float, optional
        """
        self._require_open()
        now, row = time.monotonic(), self._row
        if row["started"] == 0:
            row["started"] = now
        row["updated"] = now
        if epoch is not None and epoch != row["epoch"]:
            row["epoch"], row["steps_before_epoch"] = epoch, row["steps"]
        row["steps"] += steps
        if loss is not None:
            row["loss"] = loss

    def report(self, metrics: Mapping[str, float | str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Hand values to the controller, for its display and for the summary of the job; the last of a name stays."""
        plain = {name: value if isinstance(value, (str, int)) else float(value) for name, value in metrics.items()}
        self._session.ask(msg.Report(metrics=plain), msg.Done, timeout_s)

    def keep(self, name: str, value: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Leave a value with the controller, for `take_kept` when this rank is started again, or the job resumed.

        It is for what the center does not hold: a scheduler's state, the best result so far, a random state. It goes
        into the next checkpoint too. A call costs a message.

        Parameters
        ----------
        name : str
            A later value of this name takes its place.
        value : plain data: None, bool, int, float, str, bytes, list, dict
            All values of one rank may take up 256 KiB.
        """
        self._session.ask(msg.Keep(name=name, value=msg.encode_value(value)), msg.Done, timeout_s)

    def take_kept(self, name: str, default: Any = None) -> Any:
        """Return what an earlier process of this rank has kept under a name, once; after that the default."""
        name = legible(name)  # as it was sent
        return msg.decode_value(self._kept.pop(name)) if name in self._kept else default

    @property
    def should_stop(self) -> bool:
        """Whether the job has decided to stop, or its controller is gone. Reading it costs a memory access.

        Each worker sees it at its own time: leave loops that make collective calls by `agree_to_stop`. After `close` it
        keeps its last value, so a thread that waits for it must look at `closed` too.
        """
        if self._job_state.stopping:
            return True
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        if self._controller_alive() or self._closed:  # in this order: it is closed before the memory is
            return False
        log.warning("rank %d: the controller of this job is gone; stopping", self.global_rank)
        self._job_state.stop("the controller is gone")
        return True

    @property
    def stop_reason(self) -> str:
        """Why the job stops; empty while it does not. After `close` it keeps its last value."""
        return self._job_state.stop_reason

    def request_stop(self, reason: str, *, policy: str = "any", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Vote for the end of the job; `should_stop` tells all workers when the votes suffice.

        `request_stop`, `report` and `keep` work in a signal handler too, whatever it has interrupted.

        Parameters
        ----------
        reason : str
        policy : {"any", "all", "leader"}
            Whose votes are needed: one, all, or that of the lowest rank present.
        """
        require_policy(policy)
        self._session.ask(msg.Vote(reason=reason, policy=policy), msg.Done, timeout_s)

    # The user's own requests.

    def send_req(self, req: str, info: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Ask the user's controller; names beginning with ``platoon-`` are reserved.

        Parameters
        ----------
        req : str
        info : plain data: None, bool, int, float, str, bytes, list, dict

        Returns
        -------
        plain data
        """
        return self._session.ask(msg.UserRequest(req=req, info=info), msg.UserReply, timeout_s).answer

    def lock(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Take the job's advisory lock; it is freed when its holder dies.

        The lock counts: a worker, and a signal handler in it, may take it several times, and frees it by as many calls
        of `unlock`.

        Raises
        ------
        CollectiveTimeoutError
            If another worker held it for ``timeout_s``; 0 tries once.
        """
        self._require_open()
        self._times_locked += 1  # first: or a signal handler that takes it and frees it would free this call's too
        try:
            self._await_lock(timeout_s)
        except BaseException:
            self._unlock_once()
            raise

    def _await_lock(self, timeout_s: float) -> None:
        pause, deadline = 50e-6, time.monotonic() + timeout_s
        while not self._lock.try_acquire():
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"another worker held the lock for {timeout_s:g} s; unlock() in a finally clause"
                )
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)

    def unlock(self) -> None:
        """Free the job's advisory lock, or undo one of several calls of `lock`."""
        self._require_open()
        self._unlock_once()

    def _unlock_once(self) -> None:
        self._times_locked = max(self._times_locked - 1, 0)
        if not self._times_locked:
            self._lock.release()

    # The end.

    @property
    def closed(self) -> bool:
        """Whether this worker has left the job."""
        return self._closed

    def close(self) -> None:
        """Leave the job; the others go on. A second call does nothing.

        `should_stop`, `stop_reason` and the `stop_votes` keep their last values. All else that needs the job
        raises `ConfigurationError`. A call that another thread is in ends with an error.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return  # a forked child: the connection, the memory and the place in the job are its parent's
        self._row["left"] = 1
        try:
            self._arrays.close()
            self._control.close()
        finally:
            if self._shared is not None:
                self._shared.close()
            self.stop_votes.close()
            self._row = self._row.copy()  # nothing is to lie on the memory any more
            self._on_close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    # What they share.

    @property
    def _session(self) -> Session:
        self._require_open()
        return self._control

    def _group(self, array: Any, timeout_s: float) -> Collective:
        self._require_open()
        self._require_controller()
        return self._arrays.of(array, timeout_s)

    def _shares_alone(self) -> bool:
        return self.global_size == 1 and not self._job_state.shared_by_several

    def _require_shared(self) -> SharedParameters:
        self._require_open()
        if self._shared is None:
            raise ConfigurationError("no parameters are shared yet: call init_shared_params first")
        return self._shared

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigurationError("this worker has left the job: nothing can be done after close()")
        if os.getpid() != self._pid:
            raise ConfigurationError(
                "this is a forked child of the worker's process: its place in the job is its parent's; let the process "
                "that joined make the calls"
            )

    def _require_controller(self) -> None:
        if self.should_stop and not self._controller_alive():
            self._require_open()  # another thread may have closed it just now
            raise WorkerLostError("the controller of this job is gone: stop, and start the job again")
