"""Endpoints, names and addresses of hosts, in the format of ``--rdzv-endpoint``."""

from __future__ import annotations

import ipaddress
import re
import socket

from platoon_base.errors import ConfigurationError

DEFAULT_PORT = 29400  # torchrun has the same default.
_ENDPOINT = re.compile(r"\[([^\[\]]+)\](?::(\d+))?|([^:\[\]]+)(?::(\d+))?|([^\[\]]*:[^\[\]]*:[^\[\]]*)")


def divided(endpoint: str) -> tuple[str, int]:
    """Return the host and the port of an endpoint; raises `ConfigurationError` if it is invalid."""
    found = _ENDPOINT.fullmatch(endpoint)
    name, port = (
        ("", 0) if found is None else (found[1] or found[3] or found[5], int(found[2] or found[4] or DEFAULT_PORT))
    )
    if not name or not 0 < port < 1 << 16:
        raise ConfigurationError(
            f"got the endpoint {endpoint!r}: it must be HOST or HOST:PORT, such as 10.0.0.1:29400 or [fd00::1]:29400"
        )
    return name, port


def resolved(name: str) -> str:
    """Return an address of a name, IPv4 if it has one; empty if it does not resolve now."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as exc:
        raise ConfigurationError(f"got the host {name!r} in --rdzv-endpoint, which is not a host name ({exc})") from exc
    except OSError:
        return ""
    addresses = [str(entry[4][0]) for entry in found]
    return next((address for address in addresses if ":" not in address), addresses[0])


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def own_address_towards(address: str) -> str:
    """Return the address from which this host sends packets to another; empty without a route."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, 9))  # This sends nothing.
        except OSError:
            return ""
        return str(sock.getsockname()[0])
