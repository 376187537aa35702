"""The rendezvous of a job's launchers: host 0 listens, the other hosts connect to it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

import platoon_base
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.hosts import Place, World
from platoon_base.links.peer import LinkClient, LinkServer, Peer
from platoon_base.multihost import messages as between
from platoon_base.multihost.addresses import (
    divided,
    find_key,
    is_loopback,
    key_file,
    own_address_towards,
    read_or_make_key,
    resolved,
)
from platoon_base.multihost.courier_table import Member
from platoon_base.multihost.hosts import HostTable
from platoon_base.system.environment import KEY_FILE, MAX_WORKERS
from platoon_base.system.process import awake
from platoon_base.timeouts import POLL_S, timeout
from platoon_base.worker_process.program import Program

log = logging.getLogger(__name__)

_NEWS_S, _FIRST_NEWS_S = 10.0, 5.0
_KEY_BYTES = 32
_T = TypeVar("_T", str, bytes)


class RendezvousInterruptedError(Exception):
    """A signal arrived while the hosts waited for each other."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"got {number.name} while the hosts waited for each other")
        self.number = number


def introduction(place: Place, devices: list[str], program: str, problem: str = "") -> between.Arrive:
    """Return the message of this host to host 0, without the addresses."""
    return between.Arrive(
        protocol=between.PROTOCOL,
        version=platoon_base.__version__,
        hosts=place.hosts,
        host=place.host,
        name=os.uname().nodename,
        devices=devices,
        program=program,
        pid=os.getpid(),
        problem=problem,
    )


def fingerprint(program: Program, args: Sequence[str]) -> str:
    """Return a fingerprint of a script, its arguments, its source files and how it is called."""
    digest = hashlib.sha256(repr([program.is_module, program.shown, list(args)]).encode())
    for path in program.files():
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _listen(endpoint: str) -> LinkServer:
    name, port = divided(endpoint)
    address = resolved(name)
    if not address:
        raise ConfigurationError(
            f"the host name {name!r} of --rdzv-endpoint does not resolve here: pass this host's IP address"
        )
    if is_loopback(address) and not _says_loopback(name):
        # Many systems give their own name a loopback address, which no other host can reach.
        address = "0.0.0.0"
    return LinkServer(address, port, read_or_make_key())


def _says_loopback(name: str) -> bool:
    return name == "localhost" or name.startswith("127.") or name == "::1"


@contextlib.contextmanager
def gather_hosts(
    endpoint: str,
    here: between.Arrive,
    signals: StopSignals,
    say: Callable[[str], None],
    *,
    encrypted: bool = True,
    compression: str = "none",
) -> Iterator[HostTable]:
    """Listen on host 0 until all other hosts have arrived; yield their table.

    ``endpoint`` is ``HOST`` or ``HOST:PORT``. ``say`` gets lines about missing hosts. Raises
    `ConfigurationError` if a host does not arrive in time or cannot take part, and
    `RendezvousInterruptedError` at a signal.
    """
    link = _listen(endpoint)
    try:
        rendezvous = _HostRendezvous(link, here, say)
        try:
            rendezvous.wait(signals)
        except BaseException as exc:
            why = "host 0 was interrupted" if isinstance(exc, RendezvousInterruptedError) else str(exc)
            rendezvous.refuse_all(why)
            raise
        members = [rendezvous.members[host] for host in sorted(rendezvous.members)]
        arrived = [member.arrived for member in members]
        world = World(
            [len(here.devices), *(len(each.devices) for each in arrived)],
            0,
            [here.name, *(each.name for each in arrived)],
            [arrived[0].first_address, *(each.address for each in arrived)],
            secrets.token_hex(_KEY_BYTES) if encrypted else "",
            compression,
        )
        yield HostTable(link, members, world)
    finally:
        link.close()


class _Patience:
    """The limit of a wait for other hosts, and the lines that are said meanwhile."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.limit_s = timeout("rendezvous")
        self._until, self._next_news = awake() + self.limit_s, awake() + _FIRST_NEWS_S

    def check(self, taken: Sequence[signal.Signals], waits_for: str, problem: str) -> None:
        """Raise an error if a signal was taken, or the limit has passed; say at times what is missing."""
        now = awake()
        if taken:
            raise RendezvousInterruptedError(taken[0])
        if now > self._until:
            raise ConfigurationError(problem)
        if now > self._next_news:
            self._next_news = now + _NEWS_S
            self._say(f"waiting for {waits_for}")


class _HostRendezvous:
    """The arrivals of the other hosts, on host 0."""

    def __init__(self, link: LinkServer, here: between.Arrive, say: Callable[[str], None]) -> None:
        self._link = link
        self._here = here
        self._say = say
        self.members: dict[int, Member] = {}

    def wait(self, signals: StopSignals) -> None:
        patience = _Patience(self._say)
        while self._missing_hosts():
            self._link.poll(POLL_S, [signals.fd])
            patience.check(
                signals.take(),
                f"{self._missing()} at {self._link.address}",
                f"{self._missing()} did not join at {self._link.address} within {patience.limit_s:g} s: start "
                "`platoon launch` there with this --rdzv-endpoint, and read its messages (a firewall, another port?)",
            )
            for peer, body in self._link.receive():
                self._admit(peer, body)
            now = awake()
            self._link.tick(now)
            self._mark_silent_hosts(now)

    def _missing_hosts(self) -> list[int]:
        hosts = range(1, self._here.hosts)
        return [host for host in hosts if host not in self.members or self.members[host].silent]

    def _missing(self) -> str:
        missing = list(map(str, self._missing_hosts()))
        return f"host{'s' * (len(missing) > 1)} {', '.join(missing)} of {self._here.hosts}"

    def _admit(self, peer: Peer, body: bytes) -> None:
        try:
            arrived = between.decode_up(body)
        except ProtocolError as exc:
            self._refuse(peer, str(exc))
            raise ConfigurationError(f"a host has another version of this package: {exc}") from exc
        if not isinstance(arrived, between.Arrive):
            return
        who = f"host {arrived.host} ({arrived.name})"
        there = self.members.get(arrived.host)
        if there is not None and there.peer.absent:
            log.warning(
                "no heartbeat from host %d (%s): a launcher that was started later replaces it", there.host, there.name
            )
            self._link.forget(there.peer)
            there = None
        if arrived.host == 0 or there is not None:
            taken = self._here if there is None else there.arrived
            why = (
                f"host {arrived.host} of the job is {taken.name} (process {taken.pid}) already: pass a "
                "different --node-rank on each host"
            )
            self._refuse(peer, why)
            log.warning("refused %s (process %d): %s", arrived.name, arrived.pid, why)
            return
        problem = self._problem(arrived)
        if problem:
            self._refuse(peer, f"{who} {problem}")
            raise ConfigurationError(f"{who} {problem}")
        self.members[arrived.host] = Member(arrived.host, arrived.name, peer, arrived)
        missing = f", waiting for {self._missing()}" if self._missing_hosts() else ""
        self._say(f"{who} has joined{missing}")

    def _problem(self, arrived: between.Arrive) -> str:
        here = self._here
        if (arrived.protocol, arrived.version) != (here.protocol, here.version):
            return (
                f"has platoon-plugins {arrived.version}, and host 0 has {here.version}: "
                "install one version on all hosts"
            )
        if arrived.problem:
            return f"cannot take part: {arrived.problem}"
        if arrived.hosts != here.hosts:
            return f"has --nnodes {arrived.hosts}, and host 0 has {here.hosts}: pass the same on all hosts"
        if not 0 < arrived.host < here.hosts:
            return f"has an index that is not one of 0 to {here.hosts - 1}: pass each host its --node-rank"
        if arrived.program != here.program:
            return "runs another script than host 0, or has other arguments: use the same command on all hosts"
        workers = len(here.devices) + len(arrived.devices)
        workers += sum(len(member.arrived.devices) for member in self.members.values())
        if workers > MAX_WORKERS:
            return f"makes {workers} workers, and a job has at most {MAX_WORKERS}"
        return ""

    def _mark_silent_hosts(self, now: float) -> None:
        """Count unreachable launchers as missing: another launcher may take their place."""
        for host, member in self.members.items():
            peer = member.peer
            was_silent, member.silent = member.silent, peer.closed(now) or peer.silent_s(now) > timeout("silence")
            if member.silent and not was_silent:
                what = "lost the connection to" if peer.gone else "no heartbeat from"
                log.warning("%s host %d (%s) before all hosts had joined", what, host, member.name)
            elif was_silent and not member.silent:
                log.warning("host %d (%s) sends heartbeats again", host, member.name)

    def _refuse(self, peer: Peer, why: str) -> None:
        peer.send(between.encode(between.Refused(why)))

    def refuse_all(self, why: str) -> None:
        """Notify the hosts that have arrived that there will be no job."""
        for member in self.members.values():
            self._refuse(member.peer, why)
        self._link.finish(self._link.peers.values())


@contextlib.contextmanager
def arrive(
    endpoint: Callable[[], str],
    here: between.Arrive,
    signals: StopSignals,
    say: Callable[[str], None],
) -> Iterator[tuple[LinkClient, Callable[[], between.Welcome]]]:
    """Connect to host 0 from another host; yield the connection and a function.

    The function waits for host 0's welcome to the next job. ``endpoint`` returns ``HOST``,
    ``HOST:PORT``, or empty while it is unknown. The timeout ``rendezvous`` bounds the wait for host
    0, then the wait for all other hosts. Raises `ConfigurationError` if host 0 does not answer or refuses this
    host, and `RendezvousInterruptedError` at a signal.
    """
    poll = functools.partial(_poll, signals, _Patience(say))
    path = key_file()
    key = poll(
        find_key,
        f"the key in {path}",
        f"there is no key in {path}, with which this host proves that it belongs to the job: copy "
        "the file from host 0, where `platoon launch` has created it, with mode 0600 (or name "
        f"another file in {KEY_FILE})",
    )
    told = poll(endpoint, "the address of host 0", "host 0 has not published its address")
    name, port = divided(told)
    unresolved = f"the host name {name!r} of --rdzv-endpoint does not resolve: pass an IP address"
    address = poll(functools.partial(resolved, name), f"an address of {name}", unresolved)
    no_way = (
        f"this host has no route to {address}: check its network (`ip route get {address}`), or pass another address"
    )
    own = poll(functools.partial(own_address_towards, address), f"a route to {address}", no_way)
    link = LinkClient(address, port, key)
    try:
        link.peer.send(between.encode(msgspec.structs.replace(here, address=own, first_address=address)))
        yield link, lambda: _wait_for_welcome(link, f"{name}:{port}", signals, say)
    except Exception as exc:
        _send_reason(link, exc)
        raise
    finally:
        link.close()


def _send_reason(link: LinkClient, exc: Exception) -> None:
    """Report to host 0 why this host ends, if it is reachable."""
    if not link.connected or link.dismissed:
        return
    # Between two jobs, a signal ends the job of all hosts.
    if isinstance(exc, RendezvousInterruptedError):
        link.peer.send(between.encode(between.Signalled(exc.number, 1)))
    else:
        link.peer.send(between.encode(between.Failed(f"{type(exc).__name__}: {exc}")))
    link.finish()


def _poll(signals: StopSignals, patience: _Patience, ask: Callable[[], _T], what: str, problem: str) -> _T:
    """Wait until ``ask`` returns a value; ``what`` and ``problem`` are for messages."""
    while not (found := ask()):
        patience.check(signals.take(POLL_S), f"{what}: {problem}", problem)
    return found


def _wait_for_welcome(
    link: LinkClient, where: str, signals: StopSignals, say: Callable[[str], None]
) -> between.Welcome:
    patience = _Patience(say)
    while True:
        link.poll(POLL_S, [signals.fd])
        missing, problem = "the other hosts", "some of the other hosts have not joined"
        if not link.connected:
            missing, problem = f"host 0 at {where}", f"no answer from {where}" + (f" ({link.why})" if link.why else "")
        patience.check(
            signals.take(),
            missing,
            f"{problem} within {patience.limit_s:g} s: check that --rdzv-endpoint is an address of host "
            "0, and that its launcher runs",
        )
        link.receive()
        while link.inbox:  # Messages after a welcome are for the deputy.
            message = between.decode_down(link.inbox.popleft())
            if isinstance(message, between.Welcome):
                return message
            if isinstance(message, between.Refused):
                raise ConfigurationError(f"host 0 refused this host: {message.why}")
            if isinstance(message, between.JobOver):
                raise ConfigurationError(f"the job ended before it started: {message.text}")
        now = awake()
        link.peer.tick(now)
        if link.refused:
            raise ConfigurationError(
                f"host 0 at {where} refused this host, which has another key: copy the key file "
                "from host 0. Or the listener there is not its launcher"
            )
        if link.dismissed:
            what = (
                "another launcher has its --node-rank" if link.replaced else "start this launcher again for the new one"
            )
            raise ConfigurationError(f"the job at {where} {link.dismissed}: {what}")
        if link.connected and link.peer.closed(now):
            raise ConfigurationError(f"host 0 at {where} ended before the job started")
