"""The calls of a worker that adapters need and training loops do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from platoon_base.channels.client import ControlClient
from platoon_base.coordination import messages as msg
from platoon_base.coordination.messages import MAX_VECTOR_BYTES, Sum, Sums
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import SAME_DATA_REMEDY, DataSeen, kind_of
from platoon_base.layout import require_plain
from platoon_base.metrics import VECTOR_ITEM_BYTES, Pairs
from platoon_base.shm.job_state import StopVotes
from platoon_base.shm.phases import COLLECTIVE
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.connection import Connection
from platoon_base.worker.shared_parameters import SharedParameters
from platoon_base.worker.sharing import Sharing
from platoon_base.worker_process.apart import Intent, intend

if TYPE_CHECKING:
    from platoon_base.worker.device_all_reduce import DeviceAllReduce

Shape = tuple[int, ...]

_PART = MAX_VECTOR_BYTES // VECTOR_ITEM_BYTES


class Summed(NamedTuple):
    """A sum over workers, the same on all; ``ranks`` contributed, ``stop`` is why the job stops."""

    arrays: list[Array]
    pairs: Pairs
    ranks: list[int]
    stop: str


def sum_arrays(
    client: ControlClient,
    name: str,
    arrays: Sequence[Any],
    pairs: Mapping[str, tuple[float, float]] | None,
    timeout_s: float,
    *,
    skips_late: bool = False,
) -> Summed:
    """Add arrays and pairs over all workers that still take part; see `Advanced.sum_arrays`."""
    shapes, vector = _flatten(arrays)

    def add(title: str, pairs: Pairs, part: Array) -> Sums:
        call = Sum(
            name=title, pairs=pairs, vector=part.tobytes(), shapes=shapes, skips_late=skips_late, timeout_s=timeout_s
        )
        return client.wait_for_all(call, Sums)

    plain = {key: (float(total), float(weight)) for key, (total, weight) in (pairs or {}).items()}
    parts = [vector[start : start + _PART] for start in range(0, len(vector), _PART)] or [vector]
    while True:
        first = reply = add(name, plain, parts[0])
        sums = [reply.vector]
        for number, part in enumerate(parts[1:], start=2):
            reply = add(f"{name}, part {number} of {len(parts)}", {}, part)
            if reply.ranks != first.ranks:  # All workers see it and start over.
                break
            sums.append(reply.vector)
        else:
            total = np.frombuffer(b"".join(sums), dtype="<f8")
            return Summed(_unflatten(total, shapes), first.pairs, first.ranks, reply.stop)


def _flatten(arrays: Sequence[Any]) -> tuple[list[Shape], Array]:
    if hasattr(arrays, "dtype"):
        raise ConfigurationError("got one array: pass a list, also for a single array")
    for index, array in enumerate(arrays):
        require_plain(array, f"array {index}")
    taken = [np.asarray(array) for array in arrays]
    for index, array in enumerate(taken):
        if array.dtype.kind not in "biuf":
            raise ConfigurationError(
                f"got an array of {array.dtype} at index {index}, whose sum does not fit into "
                "float64: pass floats, integers or bools"
            )
    flat = [array.ravel().astype("<f8") for array in taken]
    return [array.shape for array in taken], np.concatenate(flat) if flat else np.empty(0, dtype="<f8")


def _unflatten(total: Array, shapes: Sequence[Shape]) -> list[Array]:
    found, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        found.append(total[start:stop].astype(np.float64).reshape(shape))
        start = stop
    return found


class Advanced:
    """The calls of a `Worker` for authors of adapters, as ``worker.advanced``.

    ``stop_votes`` are votes to stop a part of the job, such as one of several trainings; reading
    them costs a memory access. ``clock`` is the time of this worker by phase. See `Worker` for
    timeouts.
    """

    def __init__(self, connection: Connection, sharing: Sharing) -> None:
        self.stop_votes = StopVotes(connection.job_state, connection.identity.rank)
        self.clock = connection.progress.clock
        self.centers = connection.centers
        # `Worker.close` calls it first; if it raises, the worker leaves as one that failed.
        self.before_close: Callable[[], None] = lambda: None
        self._connection = connection
        self._sharing = sharing
        self._data_seen = DataSeen(connection.identity.resume_at)

    # Parameters.

    @property
    def shares(self) -> bool:
        """Whether there is a center: not with one worker, nor before parameters are shared."""
        return self.shared is not None

    @property
    def shared(self) -> SharedParameters | None:
        """The shared parameters, if there is a center."""
        shared = self._sharing.current
        return None if shared is None or shared.center is None else shared

    def served(self) -> SharedParameters | None:
        """Return `shared`, to synchronize; raise `WorkerLostError` if the controller is lost.

        Its ``sync(arrays, timeout_s=...)`` applies the rule to values that are about to become the
        parameters': C-contiguous ndarrays or GpuArrays with their shapes and dtypes, in place.
        """
        return self._sharing.require_served() if self.shares else None

    @property
    def sharing(self) -> int:
        """The number of the latest `Worker.init_shared_params`, from 1; 0 if none is in effect."""
        return self._sharing.number

    @property
    def round_under_way(self) -> bool:
        """Whether there is a round to complete; see `complete_round`."""
        return self.shared is not None and self.shared.round_under_way

    def complete_round(self, arrays: Sequence[Any] | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Complete the latest round of a rule that overlaps rounds with training.

        Such a rule is ``DiLoCo(overlap=0.5)``. Call it for instance in the middle of the period;
        without a round under way it does nothing. The next `Worker.sync_params` and all calls that
        copy, average or release the center complete it too. Workers that may have made different
        numbers of rounds each call it before a common evaluation: then all read the same center. If
        the other hosts' contributions do not arrive in time, it raises, and the round is still
        under way. ``arrays`` are as in `served`.
        """
        self._sharing.require_served().complete_round(timeout_s, arrays)

    def shorten_steps(self) -> str:
        """Halve the lengthening of steps by the rule, because the training loss has risen.

        Call it on all workers. The returned text says how long steps are now; it is empty if the
        rule lengthens none.
        """
        return self._sharing.require().shorten_steps()

    # Data.

    def require_same(self, name: str, fingerprint: str, remedy: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise if the fingerprint differs from the first one sent under this name; does not wait.

        The controller keeps the first fingerprint of each name, so it compares late joiners and
        restarted workers too. `ConfigurationError` is raised only on the later worker. A call costs
        one request.

        Parameters
        ----------
        name : str
            The compared things, in the error, such as ``"the data of shard call 2"``; unique in the
            job.
        fingerprint : str
            A short text that differs if the things differ. The error shows both.
        remedy : str
            Advice to the user: the last sentence of the error.
        """
        self._connection.client.ask(msg.Same(name=name, fingerprint=fingerprint, remedy=remedy), msg.Done, timeout_s)

    def describe(self, **settings: Any) -> None:
        """Send hyperparameters to the launcher, for `platoon launch --tracker`; only the leader does.

        Those that are None are left out.
        """
        if self._connection.identity.rank == self._connection.job_state.leader:
            plain = {
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in settings.items()
                if value is not None
            }
            self._connection.client.ask(msg.Report(metrics=plain, settings=True), msg.Done, DEFAULT_TIMEOUT_S)

    def begin_averages(self) -> None:
        """Begin a training with averaged gradients; see `Connection.require_same_mode`."""
        self._connection.require_same_mode("averaged gradients")

    def require_same_data(self, *data: Any, kind: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise if another worker has passed other data, such as its own split; does not wait.

        It compares fingerprints of a sample of the rows, computed at each call, and sent at the
        first one with these data. Data sets of one kind are numbered, so all workers must first
        pass them in the same order. Not compared are: data that draw random numbers when they are
        read, workers of a resumed job that continue from different positions, a single worker, and
        workers that joined late or have left. `ConfigurationError` is raised only on the later
        worker.

        Parameters
        ----------
        *data : array or sequence
            All the rows, not a shard.
        kind : str, optional
            A description of the data for the error. The default is the dtype and shape of a row.
        """
        if self._connection.identity.size == 1 or self._connection.identity.late or not self._connection.open_here:
            return
        data_id = self._data_seen.register(data, kind_of(*data) if kind is None else kind)
        if data_id is not None:
            self.require_same(*data_id, SAME_DATA_REMEDY, timeout_s=timeout_s)

    # Collective calls: every worker makes them, in the same order.

    def meet(self, name: str, *, binds: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[int]:
        """Wait until every worker has made this call; return their ranks, the same list on each.

        Unlike in `Worker.barrier`, a late joiner takes part, and the other workers wait for it from
        then on. With ``binds`` these workers depend on each other from now on: if one fails, the
        launcher does not restart it alone.
        """
        call = msg.Meet(name=name, binds=binds, timeout_s=timeout_s)
        ranks = self._connection.client.wait_for_all(call, msg.Met).ranks
        self.announce(bound=binds or None)
        return ranks

    def sum_pairs(
        self, name: str, pairs: dict[str, tuple[float, float]], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tuple[dict[str, tuple[float, float]], list[int]]:
        """Return the sums of ``{name: (sum, weight)}`` over all workers, and the ranks in them."""
        reply = self._connection.client.wait_for_all(msg.Sum(name=name, pairs=pairs, timeout_s=timeout_s), msg.Sums)
        return reply.pairs, reply.ranks

    def sum_arrays(
        self,
        name: str,
        arrays: Sequence[Any],
        pairs: Mapping[str, tuple[float, float]] | None = None,
        *,
        skips_late: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Summed:
        """Add small arrays over all workers that still take part, such as the states of metrics.

        Unlike `Worker.all_reduce`, which needs all workers that were launched, it works without
        those that left or died. The arrays pass through the controller, in one round trip for each
        512 KiB.

        Parameters
        ----------
        name : str
            The same on every worker.
        arrays : sequence of ndarray
            Of real dtypes; the same number and shapes on every worker, else all raise
            `LayoutMismatchError`.
        pairs : mapping of str to (sum, weight), optional
            Added in the same round trip; see `sum_pairs`.
        skips_late : bool
            Whether a late joiner that is not a participant yet gets its own values back, instead of
            waiting.

        Returns
        -------
        Summed
            ``arrays``, new ones of float64 with the shapes given, ``pairs``, ``ranks`` that
            contributed, and ``stop``, the reason why the job stops; bitwise equal on every worker.
            The sums are in float64, in rank order.
        """
        return sum_arrays(self._connection.client, name, arrays, pairs, timeout_s, skips_late=skips_late)

    @property
    def compresses_gradients(self) -> bool:
        """Whether all-reduces with a ``feedback`` may be compressed between hosts."""
        return self._connection.compresses_gradients

    def compresses(self, array: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Return whether all-reduces of arrays like this one are compressed with a ``feedback``.

        Where gradients are compressed, it is a collective call: it forms the group of this kind of
        array.
        """
        if not self.compresses_gradients:
            return False
        return bool(getattr(self._connection.group(array, timeout_s), "compresses", True))

    def stays_on_device(self, array: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Return whether collective calls combine arrays like this one without a copy to the host.

        A collective call: it forms the group of this kind of array.
        """
        return bool(getattr(self._connection.group(array, timeout_s), "stays_on_device", False))

    def reduce_scatter(
        self, array: Any, op: str = "sum", dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Any:
        """All-reduce, and return this worker's part: ``(workers, *shape)`` becomes ``shape``."""
        with self._connection.progress.clock.phase(COLLECTIVE):
            return self._connection.group(array, timeout_s).reduce_scatter(array, op, dest, timeout_s=timeout_s)

    def device_all_reduce(self, ordinal: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> DeviceAllReduce | None:
        """Form an NCCL group that sums memory of the workers' CUDA devices; a collective call.

        For adapters of frameworks whose compiled programs pass addresses of memory and a stream.
        ``ordinal`` is the number of this worker's device, as the driver counts. It returns None, on
        all workers, if NCCL cannot be used: two workers share a device, it is not installed, or the
        world size is 1.
        """
        from platoon_base.worker.device_all_reduce import DeviceAllReduce

        group = self._connection.nccl_group(ordinal, timeout_s)
        return None if group is None else DeviceAllReduce(group, ordinal, timeout_s)

    # Progress.

    def intend(self, what: str, unused: str, needed: Callable[[], bool] | None = None) -> Intent:
        """Record what the script has made for a training, to warn if it is unused; see `Intent`."""
        return intend(what, unused, needed) if self._connection.identity.size > 1 else Intent(what, unused)

    @property
    def activity(self) -> tuple[int, int]:
        """Numbers that grow when this worker counts a step or makes a collective call on arrays."""
        return self._connection.progress.steps, self._connection.combined

    @property
    def several_hosts(self) -> bool:
        """Whether the job runs on several hosts."""
        identity = self._connection.identity
        return identity.local_size < identity.size

    @property
    def launched(self) -> bool:
        """Whether this process belongs to a job of `platoon launch`; false under ``python``."""
        return self._connection.centers is not None

    def announce(
        self,
        *,
        epoch: int | None = None,
        limit: str | None = None,
        **numbers: int | None,
    ) -> None:
        """Record how long training will take; `platoon launch` shows the remaining time.

        A call costs a few memory accesses; after `Worker.close` it does nothing.

        Parameters
        ----------
        epoch : int, optional
            The epoch that begins. Ignored once the script itself reports epochs by
            `Worker.progress`.
        epoch_steps : int, optional
            Number of this worker's mini-batches in an epoch.
        last_epoch, last_step : int, optional
            The number of the last epoch, as `Worker.progress` reports it, and of the last
            mini-batch.
        limit : str, optional
            Another limit and how close training is to it, such as ``"patience 3/15"``.
        bound : int, optional
            1 if this worker has started training together with the others and now compiles its
            model, 2 if it compiles nothing.
        **numbers : int, optional
            Other fields of `platoon_base.shm.job_state.ROW`.
        """
        if not self._connection.open_here:
            return
        self._connection.progress.announce(epoch, limit, numbers)

    def count_step(self, loss: float | None = None) -> None:
        """Count a mini-batch, unless the script itself passes ``steps`` to `Worker.progress`."""
        client = self._connection.client
        self._connection.progress.count_for_script(loss)
        client.send_reports_if_due()
