"""The loop of a courier: it keeps the links to other hosts, gives and takes whole centers, and exchanges."""

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
from platoon_base.courier.background import BackgroundExchanges, MovingCenter
from platoon_base.courier.conversation import Conversation
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

_NICE = 5
_POLL_S = 0.05
_NUMBER_BYTES = 8  # behind a whole center: the number of its latest round


class OpenCenter(MovingCenter, Protocol):
    """The center of this host; see `platoon_base.centers.host.HostCenter`."""

    states: list[list[Array]]
    over_hosts: HostsRounds | None

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Give it values and states."""
        ...

    def close(self) -> None:
        """Let go of its memory."""
        ...


class Courier:
    """Exchanges between the center of this host and those of others.

    Where workers do not wait for each other, neither do they for an exchange; see `platoon_base.courier.background`.
    The rounds of workers that wait for each other are in `platoon_base.courier.rounds`.

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
    """

    def __init__(
        self,
        world: World,
        open_center: Callable[[], OpenCenter],
        layout: Layout,
        rule: HostsRule,
        every_s: float,
        filled: bool,
        tell: Callable[[between.News], None],
    ) -> None:
        self._world, self._layout, self._tell = world, layout, tell
        self._open_center = open_center
        self._center: OpenCenter | None = None
        self._background = BackgroundExchanges(world, layout, rule, every_s, tell)
        self._rounds: HostsRound | None = None
        self._filled = filled
        self._listener = Listener(world.addresses[world.host])
        caller = Caller(world.host, bytes.fromhex(world.data_key), frozenset(range(world.host + 1, world.hosts)))
        self._opening = Opening(self._listener, caller, {})
        self._tokens: dict[int, str] = {}  # of the couriers that this one calls
        self._conversations: dict[int, Conversation] = {}
        self._lost: set[int] = set()
        self._has_orders = False  # that were not looked at yet
        address = self._listener.address
        tell(between.Listening(address.host, address.port, address.token.hex()))

    @property
    def exchanges(self) -> int:
        """How often this host's center was moved in the background."""
        return self._background.count

    @property
    def partners(self) -> set[int]:
        """The hosts that this one exchanges with: those that it has a link to, and whose centers are filled."""
        return {host for host, conversation in self._conversations.items() if conversation.ready}

    def obey(self, order: between.Order) -> None:
        """Do what the launcher says."""
        if isinstance(order, between.Peers):
            self._lost -= order.peers.keys()
            for host, (address, port, token) in order.peers.items():
                if host < self._world.host and self._tokens.get(host) != token:
                    self._tokens[host] = token
                    self._opening.call(host, Address(address, port, bytes.fromhex(token)))
                    self._hang_up(host, "its courier is another one now")
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
            self._tokens.pop(order.host, None)
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
            if not self._filled:
                pass
            elif self._rounds is not None:
                self._rounds.step(self._conversations, self._lost)
            else:
                for host in self._background.step(self._center, self._conversations):
                    self._hang_up(host, "it takes nothing")
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
        self._background.has_new_link()
        if self._filled:
            conversation.say_ready()
        elif host == 0:
            conversation.ask(0)

    def _talk(self, host: int, conversation: Conversation) -> None:
        began = time.process_time()
        try:
            conversation.talk()
        except BrokenStreamError as exc:
            self._hang_up(host, str(exc))
            return
        if conversation.asked is not None and self._filled and not conversation.sending:
            if self._center is not None and self._made(self._center) >= conversation.asked:
                conversation.asked = None
                self.give_center(conversation)
        self._background.was_busy(time.process_time() - began)

    def _hang_up(self, host: int, why: str) -> None:
        conversation = self._conversations.pop(host, None)
        if conversation is not None:
            log.info("the link to host %d is gone: %s", host, why)
            conversation.stream.close()
        if host in self._tokens and host not in self._lost:
            self._opening.call_again(host)

    # Whole centers: the values that all hosts start from, and those for a host that is behind.

    @staticmethod
    def _made(center: OpenCenter) -> int:
        return 0 if center.over_hosts is None else center.over_hosts.made

    def give_center(self, conversation: Conversation) -> None:
        """Send the values of this host's center, the rule's states, and the number of the latest round."""
        if self._center is None:
            return
        size = self._layout.nbytes
        while True:
            number = self._made(self._center)
            values, states = self._center.snapshot()
            if self._made(self._center) == number:
                break
        data = bytearray(size * (1 + len(states)) + _NUMBER_BYTES)
        for i, arrays in enumerate([values, *states]):
            copy_all(self._layout.views(data, i * size), arrays)
        data[-_NUMBER_BYTES:] = number.to_bytes(_NUMBER_BYTES, "little")
        conversation.post_whole(memoryview(data))

    def _take_centers(self, center: OpenCenter) -> None:
        """Put what has come into this host's center, if it is not filled yet, or behind."""
        for host, conversation in self._conversations.items():
            whole = conversation.take_whole()
            if whole is None:
                continue
            number, size = int.from_bytes(whole[-_NUMBER_BYTES:], "little"), self._layout.nbytes
            if len(whole) != size * (1 + len(center.states)) + _NUMBER_BYTES:
                log.warning("host %d sends a center of %d bytes, which is that of another rule", host, len(whole))
                continue
            values, *states = (self._layout.views(whole, i * size) for i in range(1 + len(center.states)))
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
                for each in self._conversations.values():
                    each.say_ready()

    def close(self) -> None:
        """Let go of the center and of all links."""
        for conversation in self._conversations.values():
            conversation.stream.close()
        self._opening.close()
        self._listener.close()
        if self._center is not None:
            self._center.close()


def be_nice() -> None:
    """Leave the processor to the workers; but not so far that they wait for a lock while this process has no core."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
