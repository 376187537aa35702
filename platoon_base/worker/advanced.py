"""The calls of a worker that adapters need and training loops do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from platoon_base.coordination import messages as msg
from platoon_base.shm.stop_votes import StopVotes
from platoon_base.worker.array_sums import Summed, sum_arrays
from platoon_base.worker.connection import Connection
from platoon_base.worker.rounds import require_part
from platoon_base.worker.same_data import SAME_DATA_REMEDY, DataSeen, kind_of
from platoon_base.worker.sharing import Sharing
from platoon_base.worker.timeout import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from platoon_base.worker.device_all_reduce import DeviceAllReduce

__all__ = ["Advanced"]


class Advanced:
    """The calls of a `Worker` for those who write adapters, as ``worker.advanced``.

    Parameters
    ----------
    connection : Connection
    sharing : Sharing

    Attributes
    ----------
    stop_votes : StopVotes
        Votes to stop a part of the job, such as one training of several, seen at the price of a memory access.
    """

    def __init__(self, connection: Connection, sharing: Sharing) -> None:
        self.stop_votes = StopVotes(connection.job_state, connection.identity.rank)
        self._connection = connection
        self._sharing = sharing
        self._data_seen = DataSeen(connection.identity.resume_at)

    # Parameters.

    @property
    def shares(self) -> bool:
        """Whether there is a center to synchronize with: not with one worker, nor before parameters are shared."""
        return self._sharing.current is not None and self._sharing.current.center is not None

    @property
    def sharing(self) -> int:
        """Which call of `Worker.init_shared_params` holds, 1 for the first; 0 if no parameters are shared."""
        return self._sharing.number

    def sync_arrays(
        self,
        arrays: Sequence[Any],
        synchronous: bool = True,
        *,
        part: float = 1.0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Like `Worker.sync_params`, on values that are about to become the parameters'.

        Parameters
        ----------
        arrays : sequence of ndarray or GpuArray
            C-contiguous, one for each shared parameter, with its shape and dtype; changed in place.
        """
        require_part(part)
        self._sharing.require_served().sync_arrays(arrays, synchronous, part, timeout_s)

    # Data.

    def require_same(self, name: str, fingerprint: str, remedy: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise if this fingerprint differs from the first that a worker gave under the name; waits for nobody.

        The controller keeps the first fingerprint of each name, so late joiners and workers that are started again are
        compared too. A call costs a message.

        Parameters
        ----------
        name : str
            The error's name for the things compared, such as ``"the data of shard call 2"``. Each needs its own.
        fingerprint : str
            A short text that differs if the things differ. The error shows both.
        remedy : str
            Advice to the user about a difference: a sentence, with which the error ends.

        Raises
        ------
        ConfigurationError
            If another worker has given another fingerprint under this name; only on the worker that came later.
        """
        self._connection.client.ask(msg.Same(name=name, fingerprint=fingerprint, remedy=remedy), msg.Done, timeout_s)

    def require_same_data(self, *data: Any, kind: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise if another worker has passed other data, such as a random split of its own; waits for nobody.

        New data cost a message and a look at a sample of their rows; data that came before cost the look alone. Data
        sets of one kind are counted, so all workers must first pass them in the same order. Workers of a resumed job
        that go on from different positions are not compared, nor are data that draw random numbers at each reading.
        A job of one compares nothing, and neither does a worker that joined late or has left.

        Parameters
        ----------
        *data : array or sequence
            All the rows, not a shard.
        kind : str, optional
            A description of the data, for a person. The default tells dtype and shape of a row.

        Raises
        ------
        ConfigurationError
            If the data differ; only on the worker that came later.
        """
        if self._connection.identity.size == 1 or self._connection.identity.late or not self._connection.open_here:
            return
        data_id = self._data_seen.register(data, kind_of(*data) if kind is None else kind)
        if data_id is not None:
            self.require_same(*data_id, SAME_DATA_REMEDY, timeout_s=timeout_s)

    # Collective calls: every worker makes them, in the same order.

    def meet(self, name: str, *, binds: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[int]:
        """Wait until every worker has come here, and return the ranks that have, the same list on all of them.

        Unlike at a `Worker.barrier`, a late joiner waits here for the others, who from then on wait for it too. With
        ``binds`` these workers need each other from now on: the launcher does not start one of them again alone.
        """
        call = msg.Meet(name=name, binds=binds, timeout_s=timeout_s)
        ranks = self._connection.client.wait_for_all(call, msg.Met).ranks
        self.announce(bound=binds or None)
        return ranks

    def sum_pairs(
        self, name: str, pairs: dict[str, tuple[float, float]], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tuple[dict[str, tuple[float, float]], list[int]]:
        """Add ``{name: (sum, weight)}`` over all workers; returns the sums, and the ranks that contributed to them."""
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

        Unlike `Worker.all_reduce`, which needs all workers that were launched, it goes on without those that left or
        died. It passes through the controller, in one round trip up to 512 KiB.

        Parameters
        ----------
        name : str
            The same on every worker.
        arrays : sequence of ndarray
            Of real dtypes; the same number and shapes on every worker.
        pairs : mapping of str to (sum, weight), optional
            Added in the same round trip; see `sum_pairs`.
        skips_late : bool
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
        return sum_arrays(self._connection.client, name, arrays, pairs, timeout_s, skips_late=skips_late)

    def reduce_scatter(
        self, array: Any, op: str = "sum", dest: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Any:
        """Combine as `Worker.all_reduce` does, and keep this worker's part: ``(workers, *shape)`` becomes ``shape``."""
        return self._connection.group(array, timeout_s).reduce_scatter(array, op, dest, timeout_s=timeout_s)

    def device_all_reduce(self, ordinal: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> DeviceAllReduce | None:
        """Meet all workers, to add up memory of their CUDA devices by its address from now on.

        It is meant for adapters of frameworks whose compiled programs hand out addresses and a stream.

        Parameters
        ----------
        ordinal : int
            Number of the device on which this worker computes, as the driver counts.
        timeout_s : float
            Bound on the wait for the others, here and in each sum.

        Returns
        -------
        DeviceAllReduce or None
            None, on all workers, if NCCL cannot do it: two share a device, it is not installed, or this job has one
            worker.
        """
        from platoon_base.worker.device_all_reduce import DeviceAllReduce

        group = self._connection.nccl_group(ordinal, timeout_s)
        return None if group is None else DeviceAllReduce(group, ordinal, timeout_s)

    # Progress.

    @property
    def launched(self) -> bool:
        """Whether somebody watches: `platoon launch` serves this job. False under plain ``python``."""
        return self._connection.centers is not None

    def announce(
        self,
        *,
        epoch: int | None = None,
        epoch_steps: int | None = None,
        last_epoch: int | None = None,
        last_step: int | None = None,
        limit: str | None = None,
        bound: bool | None = None,
    ) -> None:
        """Tell those who watch how long training will take; `platoon launch` shows the time that is left.

        The adapters call it. A call costs a few memory accesses; in a worker that has left it does nothing.

        Parameters
        ----------
        epoch : int, optional
            The epoch that begins. A script that tells epochs by `progress` has the last word.
        epoch_steps : int, optional
            Number of this worker's mini-batches in an epoch.
        last_epoch, last_step : int, optional
            The number of the last epoch, as `Worker.progress` will report it, and that of its last mini-batch.
        limit : str, optional
            Another limit and how far it is, in a few words, such as ``"patience 3/15"``.
        bound : bool, optional
            Whether this worker has met the others to train with them, and compiles its model now.
        """
        if not self._connection.open_here:
            return
        numbers = {"epoch_steps": epoch_steps, "last_epoch": last_epoch, "last_step": last_step, "bound": bound}
        self._connection.progress.announce(epoch, limit, numbers)

    def count_step(self, loss: float | None = None) -> None:
        """Count a mini-batch for a script that does not; it does if it calls `Worker.progress` with ``steps``."""
        client = self._connection.client
        self._connection.progress.count_for_script(loss)
        client.send_reports_if_due()
