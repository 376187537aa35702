"""Collective operations on ndarrays over hosts: shared memory on each, links between them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np

from platoon_base.collectives.base import canonical_op
from platoon_base.collectives.groups import ElsewhereError, Membership, Note
from platoon_base.collectives.host import HostCollective
from platoon_base.collectives.host_exchange import CHUNK_BYTES, COMPRESSED, GroupSegment
from platoon_base.collectives.hosts_compressed import EncodedPieces, gradient_codec, is_compressible
from platoon_base.collectives.hosts_exchange import HostsExchange
from platoon_base.collectives.hosts_links import Counterpart, Links
from platoon_base.collectives.hosts_parts import Reduction
from platoon_base.dtypes import Array
from platoon_base.errors import CollectiveTimeoutError, WorkerLostError
from platoon_base.hosts import World
from platoon_base.links.handshake import Address, Listener, open_links
from platoon_base.links.stream import Stream, require_cipher
from platoon_base.shm.liveness import Liveness
from platoon_base.shm.segments import HiddenName
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)


class HostsCollective(HostCollective):
    """One rank of a group of all ranks of several hosts; see `Collective`. Use `form`.

    As `HostCollective`, except: floats are combined on each host in the order of its ranks, then in
    the order of the hosts; a rank is absent if its host is lost or its link breaks. A network cut
    does no harm if it ends before the host counts as lost. Data between hosts are encrypted if the
    world has a data key. If a rank without a link refuses a call, other hosts notice it at the next
    call of a rank of that host. ``index`` and ``shared`` are those of this host's ranks; ``ranks``
    are those of the job.
    """

    # Most waits end when data arrive from a link, so yield the core early.
    _spins: ClassVar[dict[str, int]] = {"roomy_spins": 50}

    def __init__(
        self,
        shared: GroupSegment,
        index: int,
        world: World,
        ranks: Sequence[int],
        streams: Sequence[tuple[int, Stream]],
        liveness: Liveness,
        fused: bool | None = None,
    ) -> None:
        super().__init__(shared, index, liveness, fused)
        self.rank, self.size = world.ranks_here[index], world.size
        self._ranks = self._failure.ranks = tuple(ranks)
        self._world = world

        def counterpart(host: int) -> Counterpart:
            other = world.ranks_on(host)[index]
            return Counterpart(host, other, ranks[other], f"rank {ranks[other]} on {world.named(host)}")

        self._has_warned = False
        self._codec = gradient_codec(world)
        self._token = object()  # Residuals of another group must not be used.
        ordered = sorted(streams, key=lambda pair: pair[0])
        links = Links([(counterpart(host), stream) for host, stream in ordered], self._failure.write)
        self._exchange = HostsExchange(
            self._exchange,
            shared.open_memory,
            world.workers,
            world.host,
            index,
            links,
        )

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        """Make a call; an all-reduce with ``feedback`` is compressed if that is configured."""
        exchange, codec = self._exchange, self._codec
        if feedback is None or codec is None or not isinstance(array, np.ndarray):
            return super().call(kind, array, op, root, out, timeout_s)
        if not isinstance(exchange, HostsExchange) or kind != "all_reduce" or not is_compressible(array.dtype, op):
            return super().call(kind, array, op, root, out, timeout_s)
        key = self._token, canonical_op(op), array.dtype.name, array.shape
        exchange.reduction = functools.partial(Reduction, pieces=functools.partial(EncodedPieces, codec, feedback, key))
        try:
            return super().call(kind, array, op, COMPRESSED, out, timeout_s)
        finally:
            exchange.reduction = Reduction

    def _check_progress(self, header: Array, deadline: float, timeout_s: float) -> float:
        """Warn of unreachable hosts, and name them in the error of a call that has timed out."""
        why = self._exchange.unanswered()
        if why and not self._has_warned:
            log.warning("%s waits: %s", self._named(header).rstrip(","), why)
        self._has_warned = bool(why)
        try:
            return super()._check_progress(header, deadline, timeout_s)
        except CollectiveTimeoutError as exc:
            if not why:
                raise
            raise CollectiveTimeoutError(f"{exc}. {why}") from None

    def _why_absent(self, ranks: list[int]) -> str:
        for rank in ranks:
            why = self._liveness.why_absent([rank])
            if why:
                return f"{why}, on {self._world.named(self._world.host_of(self._ranks.index(rank)))}"
        return ""

    @classmethod
    def form(cls, membership: Membership, name: str | HiddenName, timeout_s: float) -> HostsCollective:
        """Form the group of all workers on all hosts, a collective call; all ranks raise errors."""
        forming, world = _Forming(membership, name, timeout_s), membership.world
        try:
            shared, streams = forming.run()
        except BaseException:
            forming.undo()
            raise
        index = membership.rank - world.ranks_here[0]
        return cls(shared, index, world, range(world.size), streams, membership.liveness)


class _Forming:
    """The steps to form the group; each ends with a rendezvous that reports failures to all."""

    def __init__(self, membership: Membership, name: str | HiddenName, timeout_s: float) -> None:
        self._membership, self._name, self._world = membership, name, membership.world
        self._liveness, self._timeout_s = membership.liveness, timeout_s
        self._rank = membership.rank
        self._local = tuple(self._world.ranks_here)
        self._index = self._rank - self._local[0]
        self._listener: Listener | None = None
        self._shared: GroupSegment | None = None
        self._streams: dict[int, Stream] = {}
        self._absent_since = awake()

    def run(self) -> tuple[GroupSegment, list[tuple[int, Stream]]]:
        """Return this host's shared memory and this rank's links."""
        deadline = awake() + self._timeout_s
        step = functools.partial(self._membership.step, timeout_s=self._timeout_s)
        notes = step("form the collective of all hosts", self._listen)
        step("share memory on each host", self._create)
        step("link the hosts", lambda: self._link(notes, deadline))
        if self._listener is not None:
            self._listener.close()
        streams = [(self._world.host_of(rank), stream) for rank, stream in self._streams.items()]
        return cast(GroupSegment, self._shared), streams

    def undo(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for stream in self._streams.values():
            stream.close()
        if self._shared is not None:
            self._shared.close()
            self._shared.unlink()

    @property
    def _has_lane(self) -> bool:
        return self._index < min(self._world.workers)

    def _listen(self) -> Note:
        if self._world.data_key:
            require_cipher()
        if not self._has_lane:
            return Note()
        self._listener = Listener(self._world.addresses[self._world.host])
        return Note(self._listener.address.port, self._listener.address.token)

    def _create(self) -> None:
        if self._index == 0:
            self._shared = GroupSegment.create(self._name, self._local, CHUNK_BYTES)

    def _link(self, notes: dict[int, Note], deadline: float) -> None:
        if self._shared is None:
            self._shared = GroupSegment.attach(self._name, self._local)
        if self._listener is not None:
            world = self._world
            others = [host for host in range(world.hosts) if host != world.host]
            counterparts = {host: world.ranks_on(host)[self._index] for host in others}
            calls = {
                rank: Address(world.addresses[host], notes[rank].port, notes[rank].token)
                for host, rank in counterparts.items()
                if host < world.host
            }
            expected = frozenset(rank for host, rank in counterparts.items() if host > world.host)
            key = bytes.fromhex(world.data_key)
            self._streams = open_links(
                self._listener, self._rank, key, calls, expected, deadline, self._give_up_if_absent
            )

    def _give_up_if_absent(self, ranks: list[int]) -> None:
        gone = [rank for rank in ranks if self._liveness.gone(rank)]
        if gone:
            why = self._liveness.why_absent(gone) or f"ranks {gone} have disconnected"
            raise WorkerLostError(f"cannot form a group of all {self._world.size} workers: {why}")
        # A rank that has failed is already in the next rendezvous. So is one with a link that is
        # just being opened.
        now = awake()
        if not self._liveness.why_absent(ranks):
            self._absent_since = now
        elif now > self._absent_since + 2 * timeout("handshake"):
            raise ElsewhereError(f"no link to the ranks {ranks}, which are in the next step already")
