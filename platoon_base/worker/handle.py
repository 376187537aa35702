"""The handle by which a training loop takes part in a job. Adapters and users' own loops call it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_value, encode_value
from platoon_base.errors import ConfigurationError
from platoon_base.metrics import means
from platoon_base.rules import Rule
from platoon_base.schedule import require_policy
from platoon_base.sharding import shard, shard_seed
from platoon_base.system.text import legible
from platoon_base.worker.advanced import Advanced
from platoon_base.worker.connection import Connection
from platoon_base.worker.leadership import Leadership
from platoon_base.worker.rounds import require_part
from platoon_base.worker.sharing import Sharing
from platoon_base.worker.timeout import DEFAULT_TIMEOUT_S

__all__ = ["Worker"]


class Worker:
    """One of the cooperating processes of a job.

    `platoon_base.connect` makes it. All calls that wait take ``timeout_s``, in seconds; the environment variable
    ``PLATOON_TIMEOUT_S`` sets the default, 300, which also holds for waits within compiled functions. In collective
    calls the time counts from the last sign of progress of the workers that are missing: a slow one is waited for.

    Parameters
    ----------
    connection : Connection

    Attributes
    ----------
    global_rank, global_size : int
        This worker's number and the number of workers of the job.
    local_rank, local_size : int
        The same, counted on this host.
    device : str
        The device that the launcher gave this worker, such as ``"cpu"`` or ``"cuda0"``.
    late : bool
        Whether it joined a job that was launched before, and has no part in collective calls on arrays.
    seed : int
        Common to all workers.
    shard_seed : int
        Unlike that of every other worker, for dropout and the like.
    resume_at : Position
        Where to go on: at the latest synchronization of this rank, if it was started again or the job was resumed
        (`platoon launch --max-restarts`, ``--resume``); all zeros in a new job.
    advanced : Advanced
        The calls for those who write adapters.
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
        params : list of ndarray, torch.Tensor, Theano shared variable or GpuArray
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
        self._sharing.start(params, rule, on_nonfinite, timeout_s)

    def release_shared_params(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Undo `init_shared_params`: the parameters keep their values, and nothing synchronizes them any more.

        A collective call: it waits for every worker that still takes part, whether it shares parameters or not. Workers
        that died meanwhile are not waited for. When it raises, the parameters are still shared.

        Raises
        ------
        CollectiveTimeoutError
            If some workers did not call it within ``timeout_s``; the message names them.
        """
        self._sharing.release(timeout_s)

    def sync_params(self, synchronous: bool = True, *, part: float = 1.0, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Apply the rule once between the parameters and the center.

        By an outer-step rule, such as `DiLoCo`, it waits for the other workers, which call it too.

        Parameters
        ----------
        synchronous : bool
            Lock each stripe of the center while it is updated. False may lose a part of simultaneous updates. Outer
            steps are always made under locks.
        part : float in [0, 1]
            For outer-step rules: the batches since the last synchronization over the period, if there are fewer, as at
            the end of an epoch. Momentum acts for that part only. Other rules do not look at it.
        timeout_s : float
            Bound on the wait for the center, or for the other workers.

        Raises
        ------
        NonFiniteError
            If a value that was not finite had to be kept out of the center and ``on_nonfinite="raise"``.
        WorkerLostError
            If the controller is gone.
        CollectiveTimeoutError
            If some workers did not synchronize by an outer-step rule within ``timeout_s``; the message names them.
        """
        require_part(part)
        self._sharing.require_served().sync(synchronous, part, timeout_s)

    def copy_to_local(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Take the center's values over: parameters := center."""
        self._sharing.require().copy_to_local(timeout_s)

    def copy_to_global(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Overwrite the center: center := parameters. In a job on several hosts it returns once all hosts have them.

        With `init_shared_params` it also puts the parameters of synchronous training into the job's checkpoints: the
        first worker calls it now and then, and a resumed job goes on from there on all workers.
        """
        self._sharing.require().copy_to_global(timeout_s)
        self._connection.progress.mark_all_synced()

    @property
    def center_arrays(self) -> list[Any]:
        """The center's memory on this host, one ndarray for each parameter: look at it, change it by other calls."""
        return self._sharing.require().center_arrays()

    def update_center(
        self,
        update: Callable[[list[Any]], object],
        *,
        synchronous: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Let a function of the user's own change the center, in place of a rule.

        For rules that look at several parameters at once. Others are better written as a `Rule`: that runs stripe by
        stripe, in many workers at a time. All workers of a job synchronize by the same means.

        Parameters
        ----------
        update : callable
            Gets a copy of the center, one ndarray for each parameter, and changes it in place. If it raises, or a value
            is not finite afterwards, the center stays as it was.
        synchronous : bool
            Hold the job's advisory lock meanwhile, see `lock`. False may lose simultaneous updates.
        timeout_s : float
            Bound on the wait for the lock.

        Raises
        ------
        NonFiniteError
            If a value would not be finite.
        ConfigurationError
            If the center is not on the host, or in a job on several hosts with a rule that waits.
        """
        self._sharing.require_served().update_center(update, synchronous, timeout_s)

    def average_hosts(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Let the centers of all hosts come to their mean; in a job on one host it returns at once.

        In asynchronous training each host has a center, and couriers bring them together now and then. This is a
        collective call: once all workers are in it none trains, and the centers come to the mean, weighted by workers.
        Call it before an evaluation by all: then all see the same values. The adapters do so.

        Raises
        ------
        CollectiveTimeoutError
            If some workers did not call it in time, or other hosts cannot be reached, and are not lost.
        """
        self._connection.require_open()
        if self._sharing.current is not None:
            self._sharing.current.average_hosts(timeout_s)

    @contextlib.contextmanager
    def center_params(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[None]:
        """Within the ``with`` block the parameters have the center's values; afterwards their own again.

        Without shared parameters, or with one worker, nothing changes.
        """
        self._connection.require_open()
        if self._sharing.current is None:
            yield
        else:
            with self._sharing.current.center_values(timeout_s):
                yield

    # Collective calls: every worker makes them, in the same order.

    def barrier(self, name: str = "barrier", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until every worker that still takes part has come here.

        Raises
        ------
        CollectiveTimeoutError
            If some did not within ``timeout_s``; the message names them.
        """
        self._connection.client.wait_for_all(msg.Barrier(name=name, timeout_s=timeout_s), msg.Met)

    def agree_to_stop(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Return whether to stop, with the same answer on every worker: all of them call it, once a round.

        `should_stop` may turn true for one worker earlier than for another, so a loop that makes collective calls must
        not be left by it. Vote with `request_stop` before.
        """
        return bool(self._connection.client.wait_for_all(msg.AgreeToStop(timeout_s=timeout_s), msg.Met).stop)

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
        return means(self.advanced.sum_pairs("reduce_metrics", plain, timeout_s=timeout_s)[0])

    def gather(self, value: Any, *, name: str = "gather", timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Any]:
        """Return the values of all workers, in the order of their ranks, the same list on every worker.

        A collective call: it waits for every worker that still takes part. Workers that left or died have no value in
        the list, so a value that must be told apart holds the rank: ``gather([worker.global_rank, loss])``. A worker
        that joined late waits here for the others, who from then on wait for it too.

        Parameters
        ----------
        value : plain data: None, bool, int, float, str, bytes, list, dict
            Of up to 2048 bytes once encoded. A tuple arrives as a list.
        name : str
            The same on every worker. Calls of different names do not mix.
        timeout_s : float
            Bound on the wait for the others.

        Returns
        -------
        list
            One value for each worker that took part.

        Raises
        ------
        ConfigurationError
            If the value is too large. Nobody has waited then.
        ProtocolError
            If it is not plain data, such as an array.
        CollectiveTimeoutError
            If some workers did not call it within ``timeout_s``; the message names them.
        """
        return self._connection.client.gather(name, value, timeout_s)

    # Collective calls on arrays.

    def all_reduce(self, array: Any, op: str = "sum", dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Combine the arrays of all workers element by element.

        Parameters
        ----------
        array : ndarray, GpuArray or torch.Tensor
            Of the same shape and dtype on every worker: float16/32/64, int8/32/64 or uint8; tensors on CUDA devices
            of bfloat16, too.
        op : {"sum", "prod", "max", "min", "mean"}
            Or one of the original Platoon's names, such as ``"+"`` and ``"maximum"``.
        dest : array like ``array``, optional
            Where the result goes, the array itself if it is to be changed in place; a new array by default.

        Returns
        -------
        array
            ``dest``, or the new one, the same bits on every worker. An array on a device is ready for work queued
            next, a tensor for that on torch's current stream.

        Raises
        ------
        WorkerLostError
            If a worker left or died, and will not make this call.
        CollectiveTimeoutError
            If some worker did not make it in time.
        """
        return self._connection.group(array, timeout_s).all_reduce(array, op, dest, timeout_s=timeout_s)

    def broadcast(self, arrays: Sequence[Any], root: int = 0, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Copy the arrays of one worker into those of all others.

        Parameters
        ----------
        arrays : sequence of ndarray, GpuArray or torch.Tensor
            Changed in place.
        root : int
            Index of the worker among those that take part, 0 for the lowest rank.
        """
        self._connection.require_open()
        if hasattr(arrays, "dtype"):
            raise ConfigurationError("got one array: pass a list, even of one")
        for array in arrays:
            self._connection.group(array, timeout_s).broadcast(array, root, timeout_s=timeout_s)

    def all_gather(self, array: Any, dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Stack the arrays of all workers, in the order of their ranks: ``shape`` becomes ``(workers, *shape)``."""
        return self._connection.group(array, timeout_s).all_gather(array, dest, timeout_s=timeout_s)

    # Data.

    def shard(self, data: Any, *, shuffle: bool = False, epoch: int = 0, uneven: str = "keep") -> Any:
        """Return this worker's part of the data.

        Parameters
        ----------
        data : int, array, sequence or other iterable
            A number of rows gives the indices of this worker's rows; an array or a sequence gives those rows; any other
            iterable gives every N-th of its items.
        shuffle, epoch, uneven
            See `platoon_base.sharding.epoch_indices`; the permutation is drawn from the job's seed and ``epoch``. With
            ``shuffle`` the epoch is also shown by the launcher.

        Raises
        ------
        ConfigurationError
            If another worker has passed other data, see `Advanced.require_same_data`, or "drop" leaves no rows.
        """
        if hasattr(data, "__len__"):
            self.advanced.require_same_data(data)
        if shuffle:  # then the epoch was meant, also if it is 0
            self.advanced.announce(epoch=epoch)
        return shard(
            data, self.global_rank, self.global_size, shuffle=shuffle, seed=self.seed, epoch=epoch, uneven=uneven
        )

    # Progress and decisions.

    def progress(self, *, steps: int = 0, epoch: int | None = None, loss: float | None = None) -> None:
        """Tell those who watch how far this worker is; costs a few memory accesses.

        Without arguments it says that this worker goes on, for instance in a long validation. Those that wait for it
        give it up only once it has shown no progress for as long as they may wait (``timeout_s``).

        Parameters
        ----------
        steps : int
            Number of mini-batches done since the last call. Tell them before the synchronization that follows them:
            after a restart a worker goes on from the steps that were told before its latest synchronization, see
            `resume_at`.
        epoch : int, optional
            That these mini-batches belong to.
        loss : float, optional
        """
        client = self._connection.client
        self._connection.progress.add(steps, epoch, loss)
        client.send_reports_if_due()

    def report(self, metrics: Mapping[str, float | str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Hand values to the controller, for its display and for the summary of the job; the last of a name stays.

        It may be called as often as you like. Values of one name are sent once a second at most: later ones are
        kept, and sent with the next message to the controller, by `progress` after 1 s, or by `close`.
        """
        plain = {name: value if isinstance(value, (str, int)) else float(value) for name, value in metrics.items()}
        self._connection.client.report(plain, timeout_s)

    def keep(self, name: str, value: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Leave a value with the controller, for `take_kept` when this rank is started again, or the job resumed.

        Use it for values that are not in the center: a scheduler's state, the best result so far, a random state. The
        value goes into the next checkpoint too. A call costs a message.

        Parameters
        ----------
        name : str
            A later value of this name takes its place.
        value : plain data: None, bool, int, float, str, bytes, list, dict
            All values of one rank may take up 256 KiB.
        """
        self._connection.client.ask(msg.Keep(name=name, value=encode_value(value)), msg.Done, timeout_s)

    def take_kept(self, name: str, default: Any = None) -> Any:
        """Return the value that an earlier process of this rank has kept under a name, once; after that the default."""
        name = legible(name)  # as it was sent
        return decode_value(self._kept.pop(name)) if name in self._kept else default

    @property
    def is_leader(self) -> bool:
        """Whether this worker does what one worker does for all, such as saving the model or printing.

        It is rank 0. If that fails, the lowest rank that is not lost takes the role over, so ask when it is time:
        ``if worker.is_leader: model.save(...)``. A rank 0 that has ended well keeps the role: its work is done. Reading
        it costs a memory access; where the leader has just left, it waits for up to 5 s until it is known why.
        """
        return self._leadership.held()

    @property
    def should_stop(self) -> bool:
        """Whether the job has decided to stop, or its controller is gone. Reading it costs a memory access.

        Each worker sees it at its own time: leave loops that make collective calls by `agree_to_stop`. After `close` it
        keeps its last value, so a thread that waits for it must look at `closed` too.
        """
        return self._connection.stop_signal.is_set()

    @property
    def stop_reason(self) -> str:
        """Why the job stops; empty while it does not. After `close` it keeps its last value."""
        return self._connection.stop_signal.reason

    def request_stop(self, reason: str, *, policy: str = "any", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Vote for the end of the job; `should_stop` tells all workers when the votes suffice.

        `request_stop`, `report` and `keep` work in a signal handler too, whichever call it has interrupted.

        Parameters
        ----------
        reason : str
        policy : {"any", "all", "leader"}
            Whose votes are needed: one, all, or that of the lowest rank present.
        """
        require_policy(policy)
        self._connection.client.ask(msg.StopVote(reason=reason, policy=policy), msg.Done, timeout_s)

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
        return self._connection.client.ask(msg.UserRequest(req=req, info=info), msg.UserReply, timeout_s).answer

    def lock(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Take the job's advisory lock; it is freed when its holder dies.

        The lock counts: a worker, and a signal handler in it, may take it several times, and frees it by as many calls
        of `unlock`.

        Raises
        ------
        CollectiveTimeoutError
            If another worker held it for ``timeout_s``; 0 tries once.
        """
        self._connection.require_open()
        self._connection.lock.acquire(timeout_s)

    def unlock(self) -> None:
        """Free the job's advisory lock, or undo one of several calls of `lock`."""
        self._connection.require_open()
        self._connection.lock.release()

    # The end.

    @property
    def closed(self) -> bool:
        """Whether this worker has left the job."""
        return self._connection.closed

    def close(self, *, failed: bool = False) -> None:
        """Leave the job; the others go on. A second call does nothing.

        With ``failed`` it does not say goodbye: the controller counts this worker as lost once the process has ended,
        as if it had been killed. For a process whose exit status only its own parent learns.

        `should_stop`, `stop_reason` and `Advanced.stop_votes` keep their last values. All else that needs the job
        raises `ConfigurationError`. A call that another thread is in ends with an error.
        """
        self._connection.close(self._release_all, failed)

    def _release_all(self) -> None:
        self._sharing.close()
        self.advanced.stop_votes.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class _Advanced:
    # In place of a name that stood on Worker once. `__getattr__` would make each access to a property slower.

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, worker: Worker | None, owner: type[Worker]) -> NoReturn:
        raise AttributeError(f"a Worker has no attribute {self._name!r}: it is worker.advanced.{self._name} now")


for _name in (
    "announce", "count_step", "device_all_reduce", "launched", "meet", "reduce_scatter", "require_same",
    "require_same_data", "shares", "sharing", "stop_votes", "sum_arrays", "sum_pairs", "sync_arrays",
):  # fmt: skip
    setattr(Worker, _name, _Advanced(_name))
