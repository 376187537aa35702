"""Endpoints, names and addresses of hosts, and the key by which launchers know each other."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
import stat
from pathlib import Path

from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import KEY_FILE
from platoon_base.system.own_files import open_own

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


_BYTES = 32


def key_file() -> Path:
    """Return the path of the key: that in ``PLATOON_KEY_FILE``, or ``~/.platoon/key``."""
    return Path(os.environ.get(KEY_FILE) or os.path.expanduser("~/.platoon/key"))


def read_or_make_key() -> bytes:
    """Return the 32-byte key, made if there is no file; a bad file raises `ConfigurationError`."""
    path = key_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "w") as file:
                file.write(secrets.token_hex(_BYTES) + "\n")
            os.link(unfinished, path)  # The link is complete at once and never replaces a file.
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
    except OSError as exc:
        if not path.exists():
            raise ConfigurationError(
                f"cannot write the key for jobs on several hosts to {path} ({exc}): name a file "
                f"that you can write to in {KEY_FILE}, the same on each host"
            ) from exc
    return _read(path)


def find_key() -> bytes:
    """Return the 32-byte key, empty without a file; a bad file raises `ConfigurationError`."""
    # On a shared home folder, host 0 may still have to make it.
    path = key_file()
    return _read(path) if path.exists() else b""


def _read(path: Path) -> bytes:
    try:
        with os.fdopen(open_own(path.resolve(), stat.S_IFREG), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024)
    except OSError as exc:
        raise ConfigurationError(f"cannot read the key in {path} ({exc}): make the file readable for you") from exc
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(
            f"other users can read {path} (mode {stat.S_IMODE(mode):04o}), and could control your "
            "jobs with the key: run `chmod 600` on it"
        )
    try:
        key = bytes.fromhex(text.decode().strip())
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise ConfigurationError(
            f"{path} holds no key, which must be {2 * _BYTES} hexadecimal digits: remove it on "
            "host 0, which then creates it again"
        )
    return key
