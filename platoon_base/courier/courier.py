"""The loop of a courier: it keeps links to other hosts, moves whole centers, and exchanges."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import struct
import time
from collections.abc import Callable
from typing import Any

from platoon_base.centers.across_hosts import AcrossHosts, HostsMeans, Overwrites
from platoon_base.centers.stripes import copy_all
from platoon_base.compression.codecs import Codec, codec_of
from platoon_base.compression.packing import Packing, Residuals
from platoon_base.courier import messages as between
from platoon_base.courier.background import BackgroundExchanges, OpenCenter
from platoon_base.courier.conversation import NOT_FILLED, Conversation
from platoon_base.courier.rounds import HostsRound, Overwriting
from platoon_base.errors import PlatoonError
from platoon_base.hosts import World
from platoon_base.layout import Layout
from platoon_base.links.handshake import Address, Caller, Listener, Opening
from platoon_base.links.stream import BrokenStreamError
from platoon_base.rules.hosts import HostsRule
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

_NICE = 5
POLL_INTERVAL_S = 0.05
CHECK_S = 1.0
# These follow a whole center: the number of its latest round, and its version.
_TAIL = struct.Struct("<QQ")


class Courier:
    """Exchanges between the center of this host and those of others.

    With rules that do not wait, exchanges run in the background
    (`platoon_base.courier.background`). With rules that wait, they are part of each round
    (`platoon_base.courier.rounds`).

    ``open_center`` is called when there is a center. Exchanges begin at least ``every_s`` apart.
    ``filled`` says that an earlier courier reported initial values in the center. ``report`` sends
    messages to the launcher. ``memory`` for `Residuals` is zero at first and outlives the courier.
    """

    def __init__(
        self,
        world: World,
        open_center: Callable[[], OpenCenter],
        layout: Layout,
        rule: HostsRule,
        every_s: float,
        filled: bool,
        report: Callable[[between.News], None],
        memory: Any = None,
    ) -> None:
        self._world, self._layout, self._report = world, layout, report
        self._open_center = open_center
        self._center: OpenCenter | None = None
        self._codec: Codec | None = codec_of(world.compression)
        self._residuals: Residuals | None = None
        if self._codec is not None:
            room = bytearray(Residuals.size_bytes(layout)) if memory is None else memory
            self._residuals = Residuals(layout, room)
        self._packing = None if self._codec is None else Packing(layout.trained, self._codec)
        self._background = BackgroundExchanges(world, layout.trained, rule, every_s, self._packing)
        self._rounds: HostsRound | None = None
        self._overwriting: Overwriting | None = None
        self._filled, self._source = filled, 0
        self._listener = Listener(world.addresses[world.host])
        caller = Caller(world.host, bytes.fromhex(world.data_key), frozenset(range(world.host + 1, world.hosts)))
        self._opening = Opening(self._listener, caller, {})
        self._tokens: dict[int, str] = {}  # Tokens of the couriers that this one connects to.
        self._ports: dict[int, int] = {}  # The ports at which the hosts listen.
        self._conversations: dict[int, Conversation] = {}
        self._asked: Conversation | None = None  # The link that was asked for the initial values.
        self._known: set[int] = set()
        self._lost: set[int] = set()
        self._has_orders = False  # True if there are unhandled orders.
        self._linked: set[int] = set()  # Hosts that ever had a link to this one.
        self._unlinked_since: dict[int, float] = {}  # Times by host.
        self._missing: set[int] = set()  # Hosts that a warning has named.
        self._check_at = 0.0
        address = self._listener.address
        report(between.Listening(address.host, address.port, address.token.hex()))

    def handle_order(self, order: between.Order) -> None:
        if isinstance(order, between.Peers):
            self._lost -= order.peers.keys()
            self._known = order.peers.keys() - {self._world.host}
            self._background.workers.update(order.workers)
            self._source = order.source
            for host, (address, port, token) in order.peers.items():
                if host < self._world.host and self._tokens.get(host) != token:
                    self._tokens[host], self._ports[host] = token, port
                    self._opening.call(host, Address(address, port, bytes.fromhex(token)))
                    self._disconnect(host, "its courier was replaced")
        elif isinstance(order, between.Made):
            self._center = self._open_center()
            self._overwriting = Overwriting(self._world.host, self._center.overwrites, self.give_center)
            if isinstance(self._center.across_hosts, HostsMeans):
                self._center.across_hosts.is_quiet = self._background.is_quiet
            if self._center.across_hosts is not None:
                self._rounds = self._new_rounds(self._center, self._center.across_hosts)
            for conversation in self._conversations.values():
                self._send_version(conversation)
        elif isinstance(order, (between.Gather, between.Combine)):
            self._has_orders = True
            if self._rounds is not None:
                self._rounds.handle_order(order)
        elif isinstance(order, between.Lost):
            self._lost.add(order.host)
            self._known.discard(order.host)
            self._opening.forget(order.host)
            self._background.forget(order.host)
            self._tokens.pop(order.host, None)
            self._disconnect(order.host, "its host is lost")

    def _new_rounds(self, center: OpenCenter, rounds: AcrossHosts) -> HostsRound:
        residuals = self._residuals if rounds.workers_wait else None
        told = self.give_center, self._report
        return HostsRound(self._world.host, rounds, *told, center.overwrites, self._codec, residuals)

    def step(self, fds: list[int]) -> set[int]:
        """Do what is due, wait for at most one poll interval, and return readable descriptors."""
        self._open_links()
        for host, stream in list(self._opening.open.items()):
            del self._opening.open[host]
            self._begin(host, Conversation(stream, self._layout, self._packing))
        ready = self._wait(fds)
        for host, conversation in list(self._conversations.items()):
            self._talk(host, conversation)
        if self._center is not None:
            if not self._filled:
                self._fill(self._center)
            self._take_centers(self._center)
            if self._filled:
                self._exchange(self._center)
        if awake() >= self._check_at:
            self._check_at = awake() + CHECK_S
            self._report_missing()
        return ready

    def _report_missing(self) -> None:
        """Report the hosts that exchanges cannot reach, and those that are reachable again."""
        now, found = awake(), {}
        for host in self._known - self._lost:
            if host in self._conversations:
                self._unlinked_since.pop(host, None)
                self._conversations[host].keep_alive()
                silent_s = now - self._conversations[host].heard_at
                if silent_s > timeout("link"):
                    found[host] = (
                        f"no data from host {host} for {silent_s:.0f} s: is the network slow or "
                        "down, or is that host, or its courier, stopped or overloaded?"
                    )
            elif now > self._unlinked_since.setdefault(host, now) + timeout("link"):
                found[host] = self._why_unlinked(host, now - self._unlinked_since[host])
        for host, why in found.items():
            if host not in self._missing:
                self._report(between.LeftOut(host, why, host not in self._linked))
        for host in self._missing - found.keys():
            self._report(between.LeftOut(host, ""))
        self._missing = set(found)

    def _why_unlinked(self, host: int, seconds: float) -> str:
        if host < self._world.host and host in self._tokens:
            why = self._opening.why([host]).removeprefix("; ") or "no answer"
            what = f"host {self._world.host} cannot connect to port {self._ports[host]} of host {host} ({why})"
        else:
            address = self._listener.address
            what = f"no connection of host {host} has arrived at {address.host} port {address.port}"
        return f"{what} for {seconds:.0f} s. Can the hosts reach each other on all ports (firewalls, security groups)?"

    def _exchange(self, center: OpenCenter) -> None:
        if self._overwriting is not None:
            self._overwriting.step(self._conversations, self._known)
        is_round = self._rounds is not None and self._rounds.under_way
        if isinstance(center.across_hosts, HostsMeans):
            for host in self._background.step(center, self._conversations, is_round):
                self._disconnect(host, "it carries no data")
        if self._rounds is not None:
            self._rounds.step(self._conversations, self._lost)

    def _open_links(self) -> None:
        try:
            self._opening.step(awake())
        except PlatoonError as exc:  # The other end does not belong to this job: do not reconnect.
            log.warning("no exchange with a host: %s", exc)

    def _wait(self, fds: list[int]) -> set[int]:
        """Sleep until a link is readable or writable, for at most one poll interval."""
        with selectors.DefaultSelector() as selector:
            for fd in fds:
                selector.register(fd, selectors.EVENT_READ)
            selector.register(self._opening, selectors.EVENT_READ)
            for conversation in self._conversations.values():
                events = (0 if conversation.waits else selectors.EVENT_READ) | (
                    selectors.EVENT_WRITE if conversation.sending else 0
                )
                if events:
                    selector.register(conversation.stream, events)
            wait_s, self._has_orders = 0.0 if self._has_orders else POLL_INTERVAL_S, False
            return {key.fileobj for key, _ in selector.select(wait_s) if isinstance(key.fileobj, int)}

    def _begin(self, host: int, conversation: Conversation) -> None:
        old = self._conversations.pop(host, None)
        if old is not None:
            old.stream.close()
        self._conversations[host] = conversation
        self._linked.add(host)
        self._send_version(conversation)

    def _send_version(self, conversation: Conversation) -> None:
        center = self._center if self._filled else None
        conversation.send_version(NOT_FILLED if center is None else center.overwrites.version)

    def _talk(self, host: int, conversation: Conversation) -> None:
        began = time.process_time()
        try:
            conversation.talk()
        except BrokenStreamError as exc:
            self._disconnect(host, str(exc))
            return
        number = None if conversation.sending or not self._filled else conversation.asked
        if self._center is not None and number is not None and self._made(self._center) >= number:
            conversation.asked = None
            self.give_center(conversation)
        self._background.was_busy(time.process_time() - began)

    def _disconnect(self, host: int, why: str) -> None:
        conversation = self._conversations.pop(host, None)
        if conversation is not None:
            log.info("the link to host %d was closed: %s", host, why)
            conversation.stream.close()
        if host in self._tokens and host not in self._lost:
            self._opening.call_again(host)

    def _fill(self, center: OpenCenter) -> None:
        """Fill the center with the initial values, requested from the source host."""
        if self._source != self._world.host:
            conversation = self._conversations.get(self._source)
            if conversation is not None and conversation is not self._asked:
                self._asked = conversation
                conversation.ask(0)
            return
        # A host may hold values of an earlier, lost source: it gets the whole center.
        if self._source:
            latest = max([center.overwrites.version, *(each.version or 0 for each in self._conversations.values())])
            center.overwrites.version = Overwrites.later(latest, self._source)
        self._now_filled()

    def _now_filled(self) -> None:
        self._filled = True
        self._report(between.Filled())
        for conversation in self._conversations.values():
            self._send_version(conversation)

    # Whole centers: the initial values of all hosts, and the center for a host that is behind.

    @staticmethod
    def _made(center: OpenCenter) -> int:
        return 0 if center.across_hosts is None else center.across_hosts.made

    def give_center(self, conversation: Conversation) -> None:
        """Send this host's whole center: values, states of the rule, and round totals."""
        if self._center is None:
            return
        size = self._layout.nbytes
        while True:
            number = self._made(self._center)
            values, states = self._center.snapshot()
            if self._made(self._center) == number:
                break
        data = bytearray(size * (1 + len(states)) + _TAIL.size)
        for i, arrays in enumerate([values, *states]):
            copy_all(self._layout.views(data, i * size), arrays)
        _TAIL.pack_into(data, len(data) - _TAIL.size, number, self._center.overwrites.version)
        conversation.post_whole(memoryview(data))

    def _take_centers(self, center: OpenCenter) -> None:
        """Use received centers if this host's is not filled, is behind, or was overwritten."""
        for host, conversation in self._conversations.items():
            while (whole := conversation.take_whole()) is not None:
                if not self._take_center(center, host, whole):
                    log.warning("a stalled worker holds the lock of a part of the center")
                    conversation.put_back(whole)
                    break

    def _take_center(self, center: OpenCenter, host: int, whole: bytearray) -> bool:
        """Replace this host's center by a newer one; False if a part of it was locked."""
        size = self._layout.nbytes
        if len(whole) != size * (1 + len(center.states)) + _TAIL.size:
            log.warning("host %d sends a center of %d bytes, which is for another rule", host, len(whole))
            return True
        number, version = _TAIL.unpack_from(whole, len(whole) - _TAIL.size)
        if self._filled and version <= center.overwrites.version and number <= self._made(center):
            return True
        values, *states = (self._layout.views(whole, i * size) for i in range(1 + len(center.states)))
        if not center.replace(values, states, number):
            return False
        center.overwrites.version = max(version, center.overwrites.version)
        if not self._filled:
            self._now_filled()
            return True
        for conversation in self._conversations.values():
            self._send_version(conversation)
        return True

    def close(self) -> None:
        for conversation in self._conversations.values():
            conversation.stream.close()
        self._opening.close()
        self._listener.close()
        if self._center is not None:
            self._center.close()


def be_nice() -> None:
    """Lower this process's priority slightly."""
    # With a much lower one, workers would wait for locks of a process without processor time.
    with contextlib.suppress(OSError):
        os.nice(_NICE)
