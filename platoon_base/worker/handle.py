"""The handle of a training loop in its job; adapters and loops of users call it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_value, encode_value
from platoon_base.errors import ConfigurationError
from platoon_base.metrics import means
from platoon_base.rules import Rule
from platoon_base.schedule import require_policy
from platoon_base.sharding import shard, shard_seed
from platoon_base.shm.phases import COLLECTIVE, VALIDATION
from platoon_base.system.text import legible
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.advanced import Advanced
from platoon_base.worker.connection import Connection, Leadership
from platoon_base.worker.rounds import require_part
from platoon_base.worker.sharing import Sharing


class Worker:
    """A script's handle of its job; `platoon_base.connect` returns it.

    All calls that wait take ``timeout_s``, in seconds. ``PLATOON_TIMEOUT_S`` sets the default, 300,
    which also applies to waits within compiled functions. In collective calls the timeout starts
    anew whenever a missing worker makes progress: a slow worker does not time out. They raise
    `CollectiveTimeoutError`, which names the workers that did not call in time, and
    `WorkerLostError` if the controller, or a worker that the call needs, has left or is lost.

    Attributes
    ----------
    global_rank, global_size : int
        This worker's rank and the number of workers of the job.
    local_rank, local_size : int
        The same, counted on this host.
    device : str
        The device that the launcher assigned to this worker, such as ``"cpu"`` or ``"cuda0"``.
    late : bool
        Whether it joined a running job; then it takes no part in collective calls on arrays.
    seed, shard_seed : int
        The same on all workers, and different on each worker, for instance for dropout.
    resume_at : Position
        The position at which to continue: that of this rank's latest synchronization after a
        restart (`platoon launch --max-restarts`) or a resume (``--resume``), else all zeros.
    advanced : Advanced
        Further calls, for authors of adapters.
    """

    def __init__(self, connection: Connection) -> None:
        identity = connection.identity
        self.global_rank, self.global_size = identity.rank, identity.size
        self.local_rank, self.local_size = identity.local_rank, identity.local_size
        self.seed, self.device = identity.seed, identity.device
        self.late = identity.late
        self.resume_at = identity.resume_at
        self.shard_seed = shard_seed(identity.seed, identity.rank)
        self._connection = connection
        self._leadership = Leadership(connection)
        self._kept = dict(identity.kept)
        self._sharing = Sharing(connection)
        self.advanced = Advanced(connection, self._sharing)

    # Parameters.

    def init_shared_params(
        self,
        params: Iterable[Any],
        rule: Rule | None = None,
        *,
        moments: Iterable[Any] | None = None,
        on_nonfinite: str = "raise",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Share parameters with the other workers, before the first step and after loading weights.

        The first worker's values become the center; all others copy it. After
        `release_shared_params` it may be called again. While a launched worker is the only one, no
        rule changes its parameters: each synchronization copies them to the center.

        Parameters
        ----------
        params : list of ndarray, torch.Tensor, Theano shared variable or GpuArray
            Of float dtypes; the same number, order, names, shapes and dtypes on every worker. Or
            pairs of a name and one of these, such as ``model.named_parameters()`` of torch.
        rule : Rule, optional
            The default is `platoon_base.rules.default_rule`, ``CenterMomentum()``.
        moments : list, as params, optional
            State of the optimizer, shared after the parameters by a rule such as
            ``EASGD(moments=True)`` or `AveragedEASGD`.
        on_nonfinite : {"raise", "skip", "restore"}
            The reaction when a NaN or an infinity of this worker was kept out of the center: raise
            `NonFiniteError`, warn, or warn and copy the center to the parameters.

        Raises
        ------
        ConfigurationError
            If an argument is invalid, or parameters are shared already.
        LayoutMismatchError
            If another worker shares other parameters; the other workers continue without this one.
        NonFiniteError
            If an initial value is not finite.
        """
        self._sharing.start(params, rule, on_nonfinite, timeout_s, moments)

    def release_shared_params(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Undo `init_shared_params`: the parameters keep their values.

        A collective call: it waits for every participant, whether it shares parameters or not. If
        it raises, such as `CollectiveTimeoutError`, the parameters are still shared.
        """
        self._sharing.release(timeout_s)

    def sync_params(
        self, synchronous: bool = True, *, part: float = 1.0, whole: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Apply the rule once between the parameters and the center.

        With an outer-step rule, such as `DiLoCo`, this is a collective call.

        Parameters
        ----------
        synchronous : bool
            Whether to lock each stripe during its update; without the lock simultaneous updates may
            be lost. Outer steps always lock.
        part : float in [0, 1]
            For outer-step rules: the number of batches since the last synchronization, divided by
            the period; below 1 for instance at the end of an epoch. Momentum is scaled by it.
        whole : bool
            For outer-step rules with ``overlap``: complete the round in this call, as before an
            evaluation.

        Raises
        ------
        NonFiniteError
            If ``on_nonfinite="raise"`` and a value that is not finite was kept out of the center.
        """
        require_part(part)
        self._sharing.require_served().sync(synchronous=synchronous, part=part, whole=whole, timeout_s=timeout_s)

    def copy_to_local(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Copy the center to the parameters: parameters := center."""
        self._sharing.require().copy_to_local(timeout_s)

    def copy_to_global(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Overwrite the center: center := parameters, on all hosts.

        This also saves synchronous training: checkpoints hold the center, so the leader calls it
        regularly, and all workers of a resumed job continue from there.
        """
        self._sharing.require().copy_to_global(timeout_s)

    @property
    def center_arrays(self) -> list[Any]:
        """The center's memory on this host, an ndarray per parameter; see `update_center`."""
        return self._sharing.require().center_arrays()

    def update_center(
        self,
        update: Callable[[list[Any]], object],
        *,
        synchronous: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Change the center by a function, for equations that need several parameters together.

        Write all others as a `Rule`, which several workers can apply simultaneously, to different
        stripes. All workers of a job must synchronize in the same way.

        Parameters
        ----------
        update : callable
            Changes a copy of the center, a list of one ndarray per parameter, in place. If it
            raises, or a value is not finite afterwards (`NonFiniteError`), the center stays
            unchanged.
        synchronous : bool
            Whether to hold the job's advisory lock, see `lock`. Without it simultaneous updates may
            be lost.

        Raises
        ------
        ConfigurationError
            If the center is on devices, or the job runs on several hosts with a rule that waits.
        """
        self._sharing.require_served().update_center(update, synchronous, timeout_s)

    def average_hosts(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Make the centers of all hosts equal; on one host, return immediately.

        In asynchronous training each host has its own center, and couriers average them
        periodically. This collective call replaces the centers, and averages of centers, by their
        mean, weighted by the hosts' numbers of workers; moments are not exchanged. With `GoSGD` all
        hosts agree on the workers' mean. With a rule that waits, it waits for the center of the
        latest round. Call it before evaluations, on all workers.
        """
        self._connection.require_open()
        if self._sharing.current is not None:
            self._sharing.current.average_hosts(timeout_s)

    @contextlib.contextmanager
    def center_params(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[None]:
        """Set the parameters to the center's values within the ``with`` block, then restore them.

        Without shared parameters, or with a single worker, nothing changes.
        """
        self._connection.require_open()
        shared = self.advanced.shared
        leave = (lambda keep: None) if shared is None else shared.enter_center(timeout_s)
        try:
            yield
        finally:
            leave(False)

    # Collective calls: every worker makes them, in the same order.

    def barrier(self, name: str = "barrier", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until every participant has made this call."""
        self._connection.client.wait_for_all(msg.Barrier(name=name, timeout_s=timeout_s), msg.Met)

    def agree_to_stop(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Return whether to stop, with the same answer on every worker; a collective call.

        Loops that make collective calls must use it instead of `should_stop`, which may turn true
        on one worker before another. `request_stop` votes.
        """
        return bool(self._connection.client.wait_for_all(msg.AgreeToStop(timeout_s=timeout_s), msg.Met).stop)

    def reduce_metrics(
        self, pairs: Mapping[str, tuple[float, float]], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, float]:
        """Return the mean of each name over all workers: sum of the sums / sum of the weights.

        Parameters
        ----------
        pairs : mapping of str to (sum, weight)
            The weighted sum of this worker's values and the sum of its weights, usually a number of
            samples. The mean is NaN where all weights are 0.
        """
        plain = {name: (float(total), float(weight)) for name, (total, weight) in pairs.items()}
        return means(self.advanced.sum_pairs("reduce_metrics", plain, timeout_s=timeout_s)[0])

    def gather(self, value: Any, *, name: str = "gather", timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Any]:
        """Return the values of all workers, ordered by rank, the same list on every worker.

        A collective call. Workers that left or died have no value in the list; to identify the
        sender, include the rank: ``gather([worker.global_rank, loss])``. This call makes a late
        joiner a participant: it waits for the others, and they wait for it from then on.

        Parameters
        ----------
        value : plain data: None, bool, int, float, str, bytes, list, dict
            At most 2048 bytes once encoded, else it raises `ConfigurationError`; `ProtocolError`
            for other types, such as arrays. A tuple arrives as a list, a NumPy scalar or 0-d array
            as the number.
        name : str
            The same on every worker. Calls with different names are separate.
        """
        return self._connection.client.gather(name, value, timeout_s)

    # Collective calls on arrays.

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        dest: Any = None,
        *,
        feedback: ErrorFeedback | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Combine the arrays of all workers element by element.

        Parameters
        ----------
        array : ndarray, GpuArray or torch.Tensor
            Of the same shape and dtype on every worker: float16/32/64, int8/32/64 or uint8; tensors
            on CUDA devices also bfloat16.
        op : {"sum", "prod", "max", "min", "mean"}
            Or one of the original Platoon's names, such as ``"+"`` and ``"maximum"``.
        dest : array like ``array``, optional
            Receives the result; pass ``array`` to change it in place. The default is a new array.
        feedback : ErrorFeedback, optional
            Kept for this array from call to call, by all workers or none: ``--hosts-compression``
            then compresses its sums and means between hosts, on GPUs those of float32. Without it
            they are exact.

        Returns
        -------
        array
            ``dest`` or a new array, bitwise equal on every worker. Work that is queued afterwards
            can use an array on a device; for a tensor, work on torch's current stream.
        """
        with self._connection.progress.clock.phase(COLLECTIVE):
            return self._connection.group(array, timeout_s).all_reduce(
                array, op, dest, timeout_s=timeout_s, feedback=feedback
            )

    def broadcast(self, arrays: Sequence[Any], root: int = 0, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Copy the arrays of one worker, in place, into those of all others.

        ``root`` is the index of the source among the participants, 0 for the lowest rank.
        """
        self._connection.require_open()
        if hasattr(arrays, "dtype"):
            raise ConfigurationError("got one array: pass a list, also for a single array")
        with self._connection.progress.clock.phase(COLLECTIVE):
            for array in arrays:
                self._connection.group(array, timeout_s).broadcast(array, root, timeout_s=timeout_s)

    def all_gather(self, array: Any, dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Stack the arrays of all workers by rank: ``shape`` becomes ``(workers, *shape)``."""
        with self._connection.progress.clock.phase(COLLECTIVE):
            return self._connection.group(array, timeout_s).all_gather(array, dest, timeout_s=timeout_s)

    # Data.

    def shard(self, data: Any, *, shuffle: bool = False, epoch: int = 0, uneven: str = "keep") -> Any:
        """Return this worker's part of the data.

        Parameters
        ----------
        data : int, array, sequence or other iterable
            For a number of rows, the result is the indices of this worker's rows; for an array or a
            sequence, the rows themselves; for any other iterable, every N-th of its items.
        shuffle, epoch, uneven
            See `platoon_base.sharding.epoch_indices`; the job's seed and ``epoch`` determine the
            permutation. With ``shuffle`` the launcher also shows the epoch.

        Raises
        ------
        ConfigurationError
            If another worker has passed other data, see `Advanced.require_same_data`, or "drop"
            leaves no rows.
        """
        if hasattr(data, "__len__"):
            self.advanced.require_same_data(data)
        if shuffle:  # Without it, epoch=0 may be the default.
            self.advanced.announce(epoch=epoch)
        return shard(
            data, self.global_rank, self.global_size, shuffle=shuffle, seed=self.seed, epoch=epoch, uneven=uneven
        )

    def loading(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over batches; the wait for each counts as loading in `platoon launch --report`.

        Batches of `platoon_base.data` and of the adapters are timed without it.

        Examples
        --------
        >>> for x, y in worker.loading(loader):                                     # doctest: +SKIP
        ...     train(x, y)
        """
        return self._connection.progress.clock.loading(batches)

    def validating(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: the time in its ``with`` block counts as validation."""
        return self._connection.progress.clock.phase(VALIDATION)

    # Progress and decisions.

    def progress(self, *, steps: int = 0, epoch: int | None = None, loss: float | None = None) -> None:
        """Record the progress of this worker; it costs a few memory accesses.

        Without arguments it records only that this worker is active, for instance in a long
        validation: workers that wait for it in collective calls time out ``timeout_s`` after its
        last progress.

        Parameters
        ----------
        steps : int
            Number of mini-batches since the last call. Record them before the synchronization that
            follows them: a restarted worker continues at the step recorded before its latest
            synchronization, see `resume_at`.
        epoch : int, optional
            The epoch of these mini-batches.
        """
        client = self._connection.client
        self._connection.progress.add(steps, epoch, loss)
        client.send_reports_if_due()

    def report(self, metrics: Mapping[str, float | str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Send values to the controller, for table and summary; the latest value of a name counts.

        It can be called at any rate. Values of one name are sent at most once per second: later
        ones with the next request, by `progress` after 1 s, or by `close`.
        """
        plain = {name: value if isinstance(value, (str, int)) else float(value) for name, value in metrics.items()}
        self._connection.client.report(plain, timeout_s)

    def keep(self, name: str, value: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Store a value with the controller; after a restart or a resume `take_kept` returns it.

        For values that are not in the center: a scheduler's state, the best result, a random state.
        The next checkpoint includes it; a later value of this name replaces it. A call costs one
        request.

        Parameters
        ----------
        value : plain data: None, bool, int, float, str, bytes, list, dict
            All values of one rank together may take up to 256 KiB.
        """
        self._connection.client.ask(msg.Keep(name=name, value=encode_value(value)), msg.Done, timeout_s)

    def take_kept(self, name: str, default: Any = None) -> Any:
        """Return a value kept by an earlier process of this rank, once; then the default."""
        name = legible(name)  # `keep` sends it so.
        return decode_value(self._kept.pop(name)) if name in self._kept else default

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the leader, which acts for all, for instance saves or prints.

        The leader is rank 0; if that fails, the lowest rank that is not lost. It may change, so
        read it each time: ``if worker.is_leader: model.save(...)``. A rank 0 that ends normally
        stays the leader. Reading it costs a memory access; if the leader has just left, it waits up
        to 5 s until it is known whether the leader failed.
        """
        return self._leadership.held()

    @property
    def should_stop(self) -> bool:
        """Whether the job is to stop or its controller is lost; reading it costs a memory access.

        Workers see it at different times: end loops that make collective calls by `agree_to_stop`.
        After `close` it keeps its last value, so a thread that polls it must check `closed` too.
        """
        return self._connection.stop_signal.is_set()

    @property
    def stop_reason(self) -> str:
        """Why the job stops; empty while it does not. After `close` it keeps its last value."""
        return self._connection.stop_signal.reason

    def request_stop(self, reason: str, *, policy: str = "any", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Vote for the end of the job; `should_stop` turns true everywhere if the votes suffice.

        A signal handler may call `request_stop`, `report` and `keep`, whichever call it interrupts.
        ``policy`` is which votes suffice: "any" one, "all" workers', or the "leader"'s, the lowest
        rank present.
        """
        require_policy(policy)
        self._connection.client.ask(msg.StopVote(reason=reason, policy=policy), msg.Done, timeout_s)

    # The user's own requests.

    def send_req(self, req: str, info: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Send plain data to the user's own controller, as `keep` takes it; return its answer.

        Names ``req`` that begin with ``platoon-`` are reserved.
        """
        return self._connection.client.ask(msg.UserRequest(req=req, info=info), msg.UserReply, timeout_s).answer

    def lock(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Acquire the job's advisory lock; it is released when its holder dies.

        The lock is reentrant: a worker, and a signal handler in it, may acquire it several times,
        and must call `unlock` as often. It raises `CollectiveTimeoutError` if another worker held
        the lock for ``timeout_s``; 0 tries once.
        """
        self._connection.require_open()
        # The turn comes before the lock: otherwise two workers could each hold one of them.
        turns = self._connection.turns
        turns.begin("lock", timeout_s)
        try:
            self._connection.lock.acquire(timeout_s)
        except BaseException:
            turns.end()
            raise

    def unlock(self) -> None:
        """Undo one call of `lock`; undoing the last one releases the job's advisory lock."""
        self._connection.require_open()
        self._connection.lock.release()
        self._connection.turns.end()

    # The end.

    @property
    def closed(self) -> bool:
        """Whether this worker has left the job."""
        return self._connection.closed

    def close(self, *, failed: bool = False) -> None:
        """Leave the job; the other workers continue. A second call does nothing.

        Afterwards `should_stop`, `stop_reason` and `Advanced.stop_votes` keep their last values;
        all other calls that need the job raise `ConfigurationError`. Calls in progress in other
        threads raise. With ``failed`` the controller counts this worker as lost once the process
        has ended, as if it had been killed; for processes whose exit status the launcher does not
        see.

        Calls that compiled programs of a loop still make are awaited, and their error is raised.
        """
        if not failed and self._connection.open_here:
            try:
                self.advanced.before_close()
            except BaseException:
                self.close(failed=True)
                raise
        self._connection.close(self._sharing.complete_quietly, self._release_all, failed)

    def _release_all(self) -> None:
        self._sharing.close()
        self.advanced.stop_votes.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
