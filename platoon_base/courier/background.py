"""Exchanges in the background: couriers send copies of the centers, and the rule moves each center.

Both hosts of a pair move by the same two copies, in opposite directions, or neither of them moves.
So the mean of all centers, weighted by workers, changes only by training, even if links stall,
break and reconnect.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from platoon_base.centers.across_hosts import AcrossHosts, Overwrites, is_finite, wide
from platoon_base.centers.stripes import copy_all
from platoon_base.compression.packing import Packing
from platoon_base.courier.conversation import COPY, MOVE, Answer, Conversation, flat_copy
from platoon_base.dtypes import Array
from platoon_base.hosts import World
from platoon_base.layout import Layout
from platoon_base.links.stream import BrokenStreamError
from platoon_base.rules.hosts import HostsRule
from platoon_base.system.limits import available_cores
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

_BUSY, _BUSY_ON_A_FULL_MACHINE, _IDLE_CORES = 0.3, 0.02, 0.5


class OpenCenter(Protocol):
    """The center of this host; see `platoon_base.centers.host.HostCenter`."""

    overwrites: Overwrites
    across_hosts: AcrossHosts | None

    @property
    def states(self) -> list[list[Array]]: ...

    def copy_parameters(self, values: Sequence[Array], averages: Sequence[Array] = ()) -> None: ...

    def move(self, by: Sequence[Array], written: int, with_average: bool = False) -> bool:
        """Move the center and its workers; False if ``by`` holds the rest, for a locked stripe."""
        ...

    def snapshot(self, may_wait: bool = True) -> tuple[list[Array], list[list[Array]]]: ...

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Replace the center by another host's; False if a worker held a part for too long."""
        ...

    def close(self) -> None: ...


class BackgroundExchanges:
    """The exchanges of one host, one after the other, while its workers train.

    An exchange copies the center ``s_h``, stripe by stripe, and sends the copy to every host whose
    earlier exchange with this one has ended. The copies ``s_k`` that arrive give the mean::

        m := s_h + sum over k of w_k / w (s_k - s_h)

    ``w_k`` are the live ``workers`` of a host and ``w`` those of all hosts in the exchange; two
    hosts use the larger ``w`` of both. A stalled link delays no host: its term is added to a later
    move, from the two copies that belong together. ``layout`` has no moments, which stay on each
    host. Exchanges begin at least ``every_s`` apart. With ``packing`` they send packed differences,
    see `Reference`.
    """

    def __init__(
        self,
        world: World,
        layout: Layout,
        rule: HostsRule,
        every_s: float,
        packing: Packing | None = None,
    ) -> None:
        self._world, self._rule, self._every_s = world, rule, every_s
        self._layout = layout
        self.workers = dict(enumerate(world.workers))
        self._states = [layout.empty() for _ in rule.states]
        self._members: frozenset[int] = frozenset()
        self._pairs: dict[int, Pair] = {}
        self._links: dict[int, Conversation] = {}  # The links that the pairs use.
        self._own: OwnCopy | None = None  # The latest copy.
        self._in_exchange: list[int] = []  # Hosts of the current exchange.
        self._scratch = layout.empty() if packing is not None else []
        self._reference = None if packing is None else Reference(layout, packing)
        # The sum of the terms that have not moved the center yet.
        self._terms = wide(layout).empty()
        self._hosts: set[int] = set()  # The hosts with terms in the sum.
        self._unmoved: list[Array] | None = None  # The rest of a move that met a locked stripe.
        self._of = (0, 0)  # Version and overwrite count of the center for both.
        self._began = self._next = 0.0
        self._busy_s = 0.0  # Processor time of this exchange.
        self._sent_at: dict[int, float] = {}  # First sending of each host's unanswered copy.
        self._diverged: set[int] = set()

    def forget(self, host: int) -> None:
        self._pairs.pop(host, None)
        self._links.pop(host, None)

    def was_busy(self, seconds: float) -> None:
        """Add processor time for sending and receiving."""
        self._busy_s += seconds

    def is_quiet(self) -> bool:
        """Return whether no exchange is in flight and the center holds all earlier terms."""
        return not (self._in_flight or self._hosts or self._unmoved)

    @property
    def _in_flight(self) -> list[int]:
        return [host for host, pair in self._pairs.items() if pair.waits]

    def step(self, center: OpenCenter, conversations: Mapping[int, Conversation], is_paused: bool) -> set[int]:
        """Advance the exchange; return the hosts whose links must be reopened."""
        # While paused no exchange begins, and those in flight end.
        is_held = is_paused or center.overwrites.written != center.overwrites.spread
        broken = {host for host, link in conversations.items() if not self._talk(center, host, link, is_held)}
        if self._in_exchange:
            return broken | self._end(center, conversations)
        if is_paused:
            self._move(center)
        elif not is_held:
            self._begin(center, conversations)
        return broken

    def _talk(self, center: OpenCenter, host: int, link: Conversation, is_held: bool) -> bool:
        """Handle and answer a host's records; False if they do not fit, so that the pair starts over."""
        pair = self._pairs.get(host)
        if pair is None:
            pair = self._pairs[host] = Pair(secrets.randbits(63))
            self._links.pop(host, None)
        if self._links.get(host) is not link:
            self._links[host] = link
            pair.connect()
            link.send_life(pair.life)
        if link.life is None:
            return True
        if not pair.has_met:
            if pair.meet(link.life):
                self._members = frozenset()  # The states of its rule are new.
            link.acknowledge(pair.received)
        if link.has is None:
            return True
        try:
            self._exchange(center, host, link, pair, is_held)
        except BrokenStreamError as exc:
            log.warning("restarting the exchanges with host %d: %s", host, exc)
            self.forget(host)
            return False
        return True

    def _exchange(self, center: OpenCenter, host: int, link: Conversation, pair: Pair, is_held: bool) -> None:
        pair.take_acknowledgement(link.has or 0)
        answer = link.answer
        if answer is not None:
            pair.require(answer.number)
            if not pair.has_answered and (is_held or answer.declined or link.version != center.overwrites.version):
                pair.answer(None)
        if pair.must_send:
            pair.is_sent = True
            if pair.own is None:
                link.decline(pair.number)
            else:
                link.offer(pair.number, pair.own.workers, pair.own.total)
                link.post(COPY, pair.own.data)
        if answer is not None and pair.has_answered and (answer.declined or link.fresh):
            if pair.own is not None and not answer.declined:
                self._add_term(center, host, link, pair.own, answer)
            link.drop_answer()
            pair.take_answer()
            link.acknowledge(pair.received)

    def _begin(self, center: OpenCenter, conversations: Mapping[int, Conversation]) -> None:
        """Copy the center and send it, if it is time or another host has begun an exchange."""
        version, written = center.overwrites.version, center.overwrites.written
        peers = {
            host: link
            for host, link in conversations.items()
            if link.version == version and host in self._pairs and self._pairs[host].is_idle
        }
        now = awake()
        waits = any(link.answer is not None for link in peers.values())
        if not peers or now < self._next - (self._every_s if waits else 0):
            return
        began = time.process_time()
        data, values = self._memory()
        copy = self._scratch if self._reference is not None else values
        center.copy_parameters(copy)
        move = None
        if self._reference is not None:
            move = self._reference.follow(copy, set(peers.values()), version)
            copy_all(values, self._reference.values)
        workers, is_finite = self.workers[self._world.host], self._is_finite(self._world.host, values)
        total = workers + sum(self.workers[host] for host in peers)
        self._own = OwnCopy(data, values, version, written, workers, total, is_finite)
        for host, link in peers.items():
            pair = self._pairs[host]
            pair.answer(self._own)
            pair.is_sent = True
            link.offer(pair.number, self._own.workers, self._own.total)
            if self._reference is not None:
                self._reference.send(link, move, data)
            else:
                link.post(COPY, data)
            self._sent_at[host] = now
        self._in_exchange, self._began = list(peers), now
        self._busy_s += time.process_time() - began

    def _memory(self) -> tuple[memoryview, list[Array]]:
        """Return memory for a copy: that of the latest one, unless it is still unacknowledged."""
        own = self._own
        if own is None or any(pair.own is own for pair in self._pairs.values()):
            return flat_copy(self._layout)
        return own.data, own.values

    def _add_term(self, center: OpenCenter, host: int, link: Conversation, own: OwnCopy, answer: Answer) -> None:
        """Add the term of a host to the sum; the other host adds it with the opposite sign."""
        began = time.process_time()
        overwrites = center.overwrites
        same = own.version == link.copy_version == overwrites.version and own.written == overwrites.written
        total = max(own.total, answer.total, own.workers + answer.workers)
        if self._is_finite(host, link.theirs) and own.is_finite and same and total:
            if self._of != (own.version, own.written):
                self._of, self._hosts, self._unmoved = (own.version, own.written), set(), None
            if not self._hosts:
                for term in self._terms:
                    term[...] = 0
            self._hosts.add(host)
            for term, ours, theirs in zip(self._terms, own.values, link.theirs):
                part = term.dtype.type(answer.workers / total)
                # The difference of two products: the difference of two large numbers may overflow.
                term += theirs.astype(term.dtype, copy=False) * part - ours.astype(term.dtype, copy=False) * part
        self._busy_s += time.process_time() - began

    def _end(self, center: OpenCenter, conversations: Mapping[int, Conversation]) -> set[int]:
        """Move the center after all copies have arrived, except over links that stall."""
        now = awake()
        missing = [host for host in self._in_exchange if host in self._in_flight]
        late = {host for host in missing if self._stalled_s(host, conversations, now) > timeout("stall")}
        if len(late) < len(missing):
            return set()
        self._in_exchange = []
        self._move(center)
        # At most once per period, with pauses that leave the processor to the workers.
        self._next = max(self._began + self._every_s, now + self._busy_s * (1 / _share() - 1))
        self._busy_s = 0.0
        return {host for host in late if host in conversations and conversations[host].sending}

    def _stalled_s(self, host: int, conversations: Mapping[int, Conversation], now: float) -> float:
        """Return how long the link to a host that owes an answer has stalled."""
        link = conversations.get(host)
        since = self._sent_at.get(host, now)
        return now - (since if link is None else max(since, link.moved_at))

    def _move(self, center: OpenCenter) -> None:
        """Move the center by the rule, to the mean by the terms in the sum."""
        own, overwrites, began = self._own, center.overwrites, time.process_time()
        hosts, unmoved = frozenset(self._hosts), self._unmoved
        self._hosts, self._unmoved = set(), None
        if own is None or not (hosts or unmoved) or self._of != (overwrites.version, overwrites.written):
            return  # There is nothing to move, or it belongs to values that were overwritten.
        moves = self._corrections(own, hosts) if hosts else []
        if unmoved is not None:
            moves = [a + b for a, b in zip(moves, unmoved)] or unmoved
        if not center.move(moves, overwrites.written, with_average=not self.workers[self._world.host]):
            self._unmoved = moves
            if unmoved is None:
                log.warning(
                    "a worker holds the lock of a part of the center for long, so that part "
                    "is updated by a later exchange"
                )
        self._busy_s += time.process_time() - began

    def _corrections(self, own: OwnCopy, hosts: frozenset[int]) -> list[Array]:
        # Such a rule uses differences only: exactly opposite ones on two hosts.
        if not self._rule.states:
            return [self._rule.correction(np.zeros_like(term), term, ()) for term in self._terms]
        copies = [each.astype(term.dtype, copy=False) for each, term in zip(own.values, self._terms)]
        means = [copy + term for copy, term in zip(copies, self._terms)]
        if self._members != hosts:
            self._members = hosts
            self._restart_rule(means)
        moves = []
        for i, (copy, mean) in enumerate(zip(copies, means)):
            state = tuple(array[i].reshape(-1) for array in self._states)
            moves.append(self._rule.correction(copy.reshape(-1), mean.reshape(-1), state).reshape(copy.shape))
        return moves

    def _is_finite(self, host: int, values: Sequence[Array]) -> bool:
        if all(map(is_finite, values)):
            self._diverged.discard(host)
            return True
        if host not in self._diverged:
            self._diverged.add(host)
            log.warning(
                "the center of host %d has a NaN or an infinity and is left out of exchanges "
                "until its values are finite again; if training has diverged there, lower the "
                "learning rate",
                host,
            )
        return False

    def _restart_rule(self, means: list[Array]) -> None:
        """Reset the rule's states to the hosts' mean, since the set of hosts has changed."""
        for i, state in enumerate(self._states):
            for target, mean in zip(state, means):
                np.copyto(target, mean if i == 0 else 0)


def _share() -> float:
    """Return the fraction of time that the courier may compute: small if all cores are busy."""
    idle = available_cores() - os.getloadavg()[0]
    return _BUSY if idle > _IDLE_CORES else _BUSY_ON_A_FULL_MACHINE


class Reference:
    """A copy of this host's center that moves by what the other hosts decode::

        q := encode(c - r)
        r := r + decode(q)          here, and on each host that has r

    The next difference includes what a codec has dropped, so r follows c without residuals
    (Koloskova et al. 2019, arXiv 1902.00340). The rule compares r, not c, with the references of
    the other hosts: their weighted sum is then preserved, as with whole copies. Whole copies are
    sent to hosts without r, and to all hosts after an overwrite or a mean, so equal centers stay
    bitwise equal; also while the center holds NaN, which differences would keep.
    """

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._packing = packing
        self.values = layout.empty()
        self._known: set[Conversation] = set()  # Links of hosts that have ``values``.
        self._version = 0

    def follow(self, copy: Sequence[Array], links: Set[Conversation], version: int) -> memoryview | None:
        """Move to a copy of the center; return the difference for links that have ``values``."""
        if version != self._version or not all(map(is_finite, self.values)) or not all(map(is_finite, copy)):
            self._version, self._known = version, set()
        self._known &= links
        if not self._known:
            copy_all(self.values, copy)
            return None
        # Not reused: an earlier one may still be waiting to be sent.
        data = np.zeros(self._packing.nbytes, np.uint8)
        self._packing.advance(self.values, copy, data)
        return memoryview(data)  # type: ignore[arg-type]

    def send(self, conversation: Conversation, move: memoryview | None, whole: memoryview) -> None:
        """Send the difference to a host with the previous values, otherwise a whole copy."""
        if move is not None and conversation in self._known:
            conversation.post(MOVE, move)
        else:
            conversation.post(COPY, whole)
            self._known.add(conversation)


@dataclass(eq=False)
class OwnCopy:
    """A copy of this host's center for other hosts; ``data`` is the memory of ``values``.

    ``version`` and ``written`` belong to the copied center, see `platoon_base.centers.across_hosts`.
    The weights are ``workers``, live on this host, and ``total``, those of all hosts in its
    exchange.
    """

    data: memoryview
    values: list[Array]
    version: int
    written: int
    workers: int
    total: int
    is_finite: bool


class Pair:
    """The numbered exchanges with one other host, as this host knows them, without input or output.

    In exchange n each courier sends the other one answer: a copy of its center, or that it
    declines. The exchange takes place if and only if both answers are copies, so both decide alike.
    A courier keeps its answer until the other has acknowledged it, and resends it over a new link;
    then it begins exchange n + 1. So a link may break at any moment: no answer is lost, used twice,
    or matched with another exchange.

    The other courier recognizes this object by ``life``, a random number. ``number`` is the current
    exchange. ``own`` is this host's answer: None before it, and if ``declined``. ``has_theirs``:
    the other host's answer was used. ``is_sent``: this host's answer was sent over the present
    link. ``is_ready``: the other host has reported over the present link which answers it has.
    """

    def __init__(self, life: int) -> None:
        self.life = life
        self._their_life: int | None = None
        # ``has_met``: the other courier has sent its random number over the present link.
        self.is_ready = self.has_met = False
        self._begin_again()

    def _begin_again(self) -> None:
        self.number = 1
        self.own: OwnCopy | None = None
        self.declined = self.has_theirs = self.is_sent = self._is_acknowledged = False

    def connect(self) -> None:
        self.is_ready = self.has_met = self.is_sent = False

    def meet(self, life: int) -> bool:
        """Record the other courier's random number; return whether it has changed."""
        is_new = life != self._their_life
        if is_new:
            self._their_life = life
            self._begin_again()
        self.has_met = True
        return is_new

    @property
    def has_answered(self) -> bool:
        return self.declined or self.own is not None

    @property
    def is_idle(self) -> bool:
        return self.is_ready and not self.has_answered

    @property
    def waits(self) -> bool:
        """Whether the other host may use this host's copy and has not answered yet."""
        return self.own is not None and not self.has_theirs

    @property
    def must_send(self) -> bool:
        """Whether this host's answer must be sent over the present link."""
        return self.is_ready and self.has_answered and not self.is_sent and not self._is_acknowledged

    @property
    def received(self) -> int:
        """The latest exchange for which this host has received the answer; acknowledges it."""
        return self.number if self.has_theirs else self.number - 1

    def answer(self, own: OwnCopy | None) -> None:
        """Answer with a copy, or decline; the caller sends the answer and sets `is_sent`."""
        self.own, self.declined = own, own is None

    def take_acknowledgement(self, number: int) -> None:
        """Record the latest exchange for which the other host has received this host's answer."""
        is_acknowledged = number == self.number and self.has_answered
        if number != self.number - 1 and not is_acknowledged:
            raise BrokenStreamError(f"got exchange {number} acknowledged, and exchange {self.number} is under way")
        self.is_ready = True
        self._is_acknowledged = is_acknowledged
        self._advance()

    def require(self, number: int) -> None:
        """Raise `BrokenStreamError` if an answer does not belong to the current exchange."""
        if number != self.number or self.has_theirs:
            raise BrokenStreamError(f"got a copy of exchange {number}, and exchange {self.number} is under way")

    def take_answer(self) -> None:
        """Record that the other host's answer was used; the caller then sends `received`."""
        self.has_theirs = True
        self._advance()

    def _advance(self) -> None:
        if self.has_answered and self.has_theirs and self._is_acknowledged:
            self.number += 1
            self.own = None
            self.declined = self.has_theirs = self.is_sent = self._is_acknowledged = False
