"""Options of ``platoon launch`` for jobs on several hosts."""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from platoon_base.cli.commands.arguments import timeout_alias
from platoon_base.compression.codecs import NONE, codec_of
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.endpoint import engine_job, find_endpoint
from platoon_base.hosts.place import Place, find_place
from platoon_base.multihost.addresses import own_address_towards
from platoon_base.multihost.rendezvous import RendezvousInterruptedError
from platoon_base.multihost.secret import key_file
from platoon_base.system.environment import HOSTS_COMPRESSION
from platoon_base.system.own_files import write_whole

__all__ = ["HostOptions", "host_options"]

log = logging.getLogger(__name__)


class HostOptions(NamedTuple):
    place: Place
    endpoint: str  # the given address of the first host, or ''
    encrypted: bool  # Workers encrypt arrays for other hosts.
    compression: str = NONE  # see `platoon_base.compression.codecs.codec_of`

    def endpoint_here(self) -> str:
        """Return the first host's address, and publish it where needed."""
        if self.endpoint:
            return self.endpoint
        path = _endpoint_file()
        if path is None:
            raise ConfigurationError(_no_endpoint(self.place))
        port = _free_port()
        endpoint = f"{_address_here()}:{port}"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, endpoint.encode())
        return endpoint

    def forget_endpoint(self) -> None:
        """Remove the file that `endpoint_here` has written."""
        path = _endpoint_file()
        if path is not None and not self.endpoint and not self.place.host:
            path.unlink(missing_ok=True)

    def endpoint_there(self) -> str:
        """Return the first host's address on another host; '' while it is not known."""
        if self.endpoint:
            return self.endpoint
        path = _endpoint_file()
        if path is None:
            raise ConfigurationError(_no_endpoint(self.place))
        try:
            return path.read_text()
        except OSError:
            return ""


def _endpoint_file() -> Path | None:
    """Return the file in a shared home folder that holds the first host's address."""
    job = engine_job(os.environ)
    return key_file().with_name(f"endpoint-{job}") if job else None


def _no_endpoint(place: Place) -> str:
    return (
        f"this is host {place.host} of {place.hosts} according to {place.origin}, and the address "
        "of host 0 is unknown: pass --rdzv-endpoint HOST:PORT, an address of host 0, on all hosts"
    )


def _address_here() -> str:
    address = socket.gethostbyname(socket.gethostname())
    if not address.startswith("127."):
        return address
    for variable in ("OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2"):
        uri = os.environ.get(variable, "")
        for text in uri.partition("://")[2].partition(":")[0].split(","):
            own = own_address_towards(text) if text else ""
            if own and not own.startswith("127."):
                return own
    raise ConfigurationError(
        f"the name of this host, {socket.gethostname()}, resolves to {address}, which other hosts "
        "cannot reach: pass --rdzv-endpoint HOST:PORT, an address of this host, on all hosts"
    )


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def _compression(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        codec_of(text)
    except ConfigurationError as exc:
        raise click.BadParameter(str(exc)) from exc
    return text.strip().lower()


_OPTIONS = (
    click.option(
        "--nnodes",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of hosts of the job; each of them needs a launcher. If an engine has "
        "started several launchers (srun, mpirun), 1 makes each a separate job.  "
        "[PET_NNODES or the engine, else 1]",
    ),
    click.option(
        "--node-rank",
        type=click.IntRange(min=0),
        metavar="I",
        help="Index of this host, from 0.  [PET_NODE_RANK or the engine]",
    ),
    click.option(
        "--rdzv-endpoint",
        metavar="HOST[:PORT]",
        help="Address of host 0 that the other hosts connect to; the default port is 29400.  "
        "[PET_RDZV_ENDPOINT, MASTER_ADDR and MASTER_PORT, or the engine]",
    ),
    timeout_alias("--rdzv-timeout", "rendezvous", "How long the hosts wait for each other at the start."),
    timeout_alias(
        "--host-timeout",
        "host",
        "A host without a heartbeat for S seconds is lost, and the job continues without it. A host that is cut off "
        "for less loses nothing.",
    ),
    click.option(
        "--no-encryption",
        is_flag=True,
        help="Send arrays between hosts unencrypted. Control messages are always encrypted.",
    ),
    click.option(
        "--hosts-compression",
        default=NONE,
        show_default=True,
        metavar="CODEC",
        envvar=HOSTS_COMPRESSION,
        callback=_compression,
        help="How hosts compress averaged gradients and the exchange of their centers on slow "
        "links: float16, bfloat16, int8, int4, int2 or topk(PART). topk, such as "
        "topk(0.01), is for rules that wait. The value of host 0 is used.",
    ),
)


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as ``hosts``, a `HostOptions`."""

    @functools.wraps(command)
    def with_hosts(
        *args: Any,
        nnodes: int | None,
        node_rank: int | None,
        rdzv_endpoint: str | None,
        no_encryption: bool,
        hosts_compression: str,
        **kwargs: Any,
    ) -> Any:
        place = find_place(os.environ, nnodes, node_rank, rdzv_endpoint)
        endpoint = find_endpoint(os.environ, rdzv_endpoint) if place.hosts > 1 else ""
        if hosts_compression != NONE and place.hosts == 1:
            log.warning("--hosts-compression %s has no effect on one host", hosts_compression)
        encrypted = not no_encryption
        hosts = HostOptions(place, endpoint, encrypted, hosts_compression)
        try:
            return command(*args, hosts=hosts, **kwargs)
        except RendezvousInterruptedError as exc:
            log.warning("%s: no job was started", exc)
            raise click.exceptions.Exit(128 + exc.number) from exc

    wrapped: Callable[..., Any] = with_hosts
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
