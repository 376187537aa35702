"""The loop of a courier: it copies this host's center, exchanges copies with other hosts, and moves the center."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.centers.round_totals import HostsRounds
from platoon_base.centers.stripes import copy_all
from platoon_base.courier import messages as between
from platoon_base.courier.exchange import COPY, Conversation, flat_copy, weighted_mean
from platoon_base.courier.rounds import HostsRound
from platoon_base.errors import PlatoonError
from platoon_base.hosts.world import World
from platoon_base.layout import Layout
from platoon_base.links.handshake import Address, Caller, Listener, Opening
from platoon_base.links.stream import BrokenStreamError
from platoon_base.rules.hosts import HostsRule

__all__ = ["Courier"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

PATIENCE_S = 2.5  # that a host which sends nothing is waited for in an exchange
_BUSY, _BUSY_ON_A_FULL_MACHINE, _IDLE_CORES = 0.3, 0.02, 0.5
_NICE = 5
_REPORT_S = 1.0
_POLL_S = 0.05
_NUMBER_BYTES = 8  # behind a whole center: the number of its latest round


class MovableCenter(Protocol):
    """The center of this host; see `platoon_base.centers.host.HostCenter`."""

    states: list[list[Array]]
    over_hosts: HostsRounds | None

    def snapshot(self, may_wait: bool = True) -> tuple[list[Array], list[list[Array]]]:
        """Copy the values and the rule's states."""
        ...

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Give it values and states."""
        ...

    def move(self, by: Sequence[Array]) -> bool:
        """Move it and its workers; False if a part was left out."""
        ...

    def close(self) -> None:
        """Let go of its memory."""
        ...


class Courier:
    """Exchanges between the center of this host and those of others.

    Where workers do not wait for each other, neither do they for an exchange. It copies the center, stripe by stripe,
    sends the copy to every host that it has a link to, waits for theirs, and moves center and workers by what the rule
    says. A host that does not answer is left out this time. The rounds of workers that wait for each other are in
    `platoon_base.courier.rounds`.

    Parameters
    ----------
    world : World
    open_center : callable
        Opens the center of this host, once there is one.
    layout : Layout
    rule : HostsRule
    every_s : float
        Seconds from one exchange to the next, at least.
    filled : bool
        Whether the center, once there is one, holds the values that all hosts start from.
    tell : callable
        Takes messages for the launcher.

    Attributes
    ----------
    exchanges : int
        How often this host's center was moved.
    """

    def __init__(
        self,
        world: World,
        open_center: Callable[[], MovableCenter],
        layout: Layout,
        rule: HostsRule,
        every_s: float,
        filled: bool,
        tell: Callable[[between.News], None],
    ) -> None:
        self._world, self._layout, self._rule, self._every_s, self._tell = world, layout, rule, every_s, tell
        self._open_center = open_center
        self._center: MovableCenter | None = None
        self._rounds: HostsRound | None = None
        self._filled = filled
        self._listener = Listener(world.addresses[world.host])
        caller = Caller(world.host, bytes.fromhex(world.data_key), frozenset(range(world.host + 1, world.hosts)))
        self._opening = Opening(self._listener, caller, {})
        self._conversations: dict[int, Conversation] = {}
        self._lost: set[int] = set()
        self._states = [layout.empty() for _ in rule.states]
        self._members: frozenset[int] = frozenset()
        self._buffer, self._copy = flat_copy(layout)
        self._round: set[int] | None = None  # hosts whose copies are awaited; None between rounds
        self._round_began = self._next_round = self._next_report = 0.0
        self._busy_s = 0.0  # of this round
        self._has_orders = False  # that were not looked at yet
        self.exchanges = 0
        self._diverged: set[int] = set()
        address = self._listener.address
        tell(between.Listening(address.host, address.port, address.token.hex()))

    def obey(self, order: between.Order) -> None:
        """Do what the launcher says."""
        if isinstance(order, between.Peers):
            self._lost -= order.peers.keys()
            for host, (address, port, token) in order.peers.items():
                if host < self._world.host and host not in self._conversations:
                    self._opening.call(host, Address(address, port, bytes.fromhex(token)))
        elif isinstance(order, between.Made):
            self._center = self._open_center()
            if self._center.over_hosts is not None:
                self._rounds = HostsRound(self._world.host, self._center.over_hosts, self, self._tell)
        elif isinstance(order, (between.Gather, between.Combine)):
            self._has_orders = True
            if self._rounds is not None:
                self._rounds.obey(order)
        elif isinstance(order, between.Lost):
            self._lost.add(order.host)
            self._hang_up(order.host, "its host is lost")

    def step(self, fds: list[int]) -> set[int]:
        """Go on for a moment; returns which of some file descriptors can be read."""
        self._open_links()
        for host, stream in list(self._opening.open.items()):
            del self._opening.open[host]
            self._begin(host, Conversation(stream, self._layout))
        ready = self._wait(fds)
        for host, conversation in list(self._conversations.items()):
            self._talk(host, conversation)
        if self._center is not None:
            self._take_centers(self._center)
            if self._rounds is not None:
                if self._filled:
                    self._rounds.step(self._conversations, self._lost)
            elif not self._filled:
                pass
            elif self._round is None:
                self._begin_round()
            else:
                self._end_round()
        return ready

    def _open_links(self) -> None:
        try:
            self._opening.step(time.monotonic())
        except PlatoonError as exc:  # a host that is not of this job is not called again
            log.warning("no exchange with a host: %s", exc)

    def _wait(self, fds: list[int]) -> set[int]:
        """Sleep until something can be received or sent, or a moment has passed."""
        with selectors.DefaultSelector() as selector:
            for fd in fds:
                selector.register(fd, selectors.EVENT_READ)
            for conversation in self._conversations.values():
                events = (0 if conversation.waits else selectors.EVENT_READ) | (
                    selectors.EVENT_WRITE if conversation.sending else 0
                )
                if events:
                    selector.register(conversation.stream, events)
            wait_s, self._has_orders = 0.0 if self._has_orders else _POLL_S, False
            return {key.fileobj for key, _ in selector.select(wait_s) if isinstance(key.fileobj, int)}

    def _begin(self, host: int, conversation: Conversation) -> None:
        old = self._conversations.pop(host, None)
        if old is not None:
            old.stream.close()
        self._conversations[host] = conversation
        if host == 0 and not self._filled:
            conversation.ask()

    def _talk(self, host: int, conversation: Conversation) -> None:
        began = time.process_time()
        try:
            conversation.stream.push()
            conversation.stream.pull(conversation)
        except BrokenStreamError as exc:
            self._hang_up(host, str(exc))
            return
        if conversation.asked and self._center is not None and self._filled and not conversation.sending:
            conversation.asked = False
            self.give_center(conversation)
        self._busy_s += time.process_time() - began

    def _hang_up(self, host: int, why: str) -> None:
        conversation = self._conversations.pop(host, None)
        if conversation is not None:
            log.info("the link to host %d is gone: %s", host, why)
            conversation.stream.close()
        if self._round is not None:
            self._round.discard(host)
        if host < self._world.host and host not in self._lost:
            self._opening.call_again(host)

    # Whole centers: the values that all hosts start from, and those for a host that is behind.

    def give_center(self, conversation: Conversation) -> None:
        """Send the values of this host's center, the rule's states, and the number of the latest round."""
        if self._center is None:
            return
        rounds, size = self._center.over_hosts, self._layout.nbytes
        while True:
            number = 0 if rounds is None else rounds.made
            values, states = self._center.snapshot()
            if rounds is None or rounds.made == number:
                break
        data = bytearray(size * (1 + len(states)) + _NUMBER_BYTES)
        for i, arrays in enumerate([values, *states]):
            copy_all(self._layout.views(data, i * size), arrays)
        data[-_NUMBER_BYTES:] = number.to_bytes(_NUMBER_BYTES, "little")
        conversation.post_start(memoryview(data))

    def _take_centers(self, center: MovableCenter) -> None:
        """Put what has come into this host's center, if it is not filled yet, or behind."""
        for host, conversation in self._conversations.items():
            start = conversation.take_start()
            if start is None:
                continue
            number, size = int.from_bytes(start[-_NUMBER_BYTES:], "little"), self._layout.nbytes
            if len(start) != size * (1 + len(center.states)) + _NUMBER_BYTES:
                log.warning("host %d sends a center of %d bytes, which is that of another rule", host, len(start))
                continue
            values, *states = (self._layout.views(start, i * size) for i in range(1 + len(center.states)))
            rounds = center.over_hosts
            if rounds is None:
                if not self._filled:
                    center.fill(values, states)
            elif not self._filled or number > rounds.made:
                while not rounds.replace(values, states, number):
                    log.warning("a part of the center is held by a worker that does not go on")
            if not self._filled:
                self._filled = True
                self._tell(between.Filled())

    # Exchanges in the background.

    def _begin_round(self) -> None:
        """Copy the center and send the copy, when it is time, or another host has done so."""
        peers = {host: each for host, each in self._conversations.items() if not each.sending}
        now = time.monotonic()
        waits = any(each.fresh for each in peers.values())
        if not peers or self._center is None or now < self._next_round - (self._every_s if waits else 0):
            return
        began = time.process_time()
        values, _ = self._center.snapshot()
        for target, value in zip(self._copy, values):
            np.copyto(target, value)
        for conversation in peers.values():
            conversation.post(COPY, self._buffer)
        self._round, self._round_began = set(peers), now
        self._busy_s += time.process_time() - began

    def _end_round(self) -> None:
        """Move the center when all copies have come, or those that have come when the others take too long."""
        if self._round is None or self._center is None:
            return
        fresh = [host for host in self._round if self._conversations[host].fresh]
        sending = any(self._conversations[host].sending for host in self._round)
        late = time.monotonic() > self._round_began + PATIENCE_S
        if not late and (sending or len(fresh) < len(self._round)):
            return
        if not late or fresh:
            self._move(fresh)
        for host in self._round - set(fresh):
            self._forget_round_of(host)
        self._round = None
        now = time.monotonic()
        # Not more often than asked for, nor than leaves the processor to others.
        self._next_round = max(self._round_began + self._every_s, now + self._busy_s * (1 / _share() - 1))
        self._busy_s = 0.0
        if fresh and now >= self._next_report:
            self._next_report = now + _REPORT_S
            self._tell(between.Exchanged(self.exchanges, [self._world.host, *sorted(fresh)], now - self._round_began))

    def _forget_round_of(self, host: int) -> None:
        """Leave a host out that took too long; what is still to be sent to it stays as it is."""
        if self._conversations[host].sending:  # its memory must not change: this link begins anew
            self._hang_up(host, f"it took nothing for {PATIENCE_S:g} s")

    def _move(self, fresh: list[int]) -> None:
        began = time.process_time()
        fresh = [host for host in fresh if self._is_finite(host)]
        if not (fresh and all(map(_finite, self._copy))):
            return
        weights = [float(self._world.workers[host]) for host in [self._world.host, *fresh]]
        means = weighted_mean([self._copy, *(self._conversations[host].theirs for host in fresh)], weights)
        if self._members != frozenset(fresh):
            self._members = frozenset(fresh)
            self._restart_rule(means)
        moves = []
        for i, (own, mean) in enumerate(zip(self._copy, means)):
            state = tuple(array[i].reshape(-1) for array in self._states)
            moves.append(self._rule.correction(own.reshape(-1), mean.reshape(-1), state).reshape(own.shape))
        for host in fresh:
            self._conversations[host].fresh = False
        if self._center is not None and not self._center.move(moves):
            log.warning("a part of the center was held for long, and was not moved this time")
        self.exchanges += 1
        self._busy_s += time.process_time() - began

    def _is_finite(self, host: int) -> bool:
        """Tell whether a host's copy holds finite numbers; if not it is left out, with a warning."""
        conversation = self._conversations[host]
        if all(map(_finite, conversation.theirs)):
            return True
        conversation.fresh = False
        if host not in self._diverged:
            self._diverged.add(host)
            log.warning("the center of host %d holds NaN or infinity: it is left out, has training diverged?", host)
        return False

    def _restart_rule(self, means: list[Array]) -> None:
        """Start the rule's states anew from where the hosts are: another set of them takes part now."""
        for i, state in enumerate(self._states):
            for target, mean in zip(state, means):
                np.copyto(target, mean if i == 0 else 0)

    def close(self) -> None:
        """Let go of the center and of all links."""
        for conversation in self._conversations.values():
            conversation.stream.close()
        self._opening.close()
        self._listener.close()
        if self._center is not None:
            self._center.close()


def _finite(array: Array) -> bool:
    """Tell whether all numbers are finite; a sum of finite ones that overflows counts as not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))


def be_nice() -> None:
    """Leave the processor to the workers; but not so far that they wait for a lock while this process has no core."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _share() -> float:
    """Return the part of its time that the courier may compute: little where the workers keep all cores busy."""
    idle = len(os.sched_getaffinity(0)) - os.getloadavg()[0]
    return _BUSY if idle > _IDLE_CORES else _BUSY_ON_A_FULL_MACHINE
