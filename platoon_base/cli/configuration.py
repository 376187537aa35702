"""The configured hosts and devices: from arguments, the environment, or ``.platoonrc``."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from platoon_base.devices.discovery import Choice, choose_devices
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.place import START_ONE, find_place
from platoon_base.system.environment import DEVICES, HOSTS, RC_FILES

__all__ = ["chosen_devices", "other_hosts_named", "require_one_host", "require_this_host"]

_FILE = ".platoonrc"
_THIS_HOST = ("localhost", "127.0.0.1")


class _Setting(NamedTuple):
    """Configured names, and where they were configured."""

    names: list[str]
    origin: str


def chosen_devices(workers: int | None, words: Sequence[str]) -> Choice:
    """Choose the workers' devices: by ``-n`` and ``-D``, else as configured, else all available."""
    setting = _configured_devices() if workers is None and not words else None
    if setting is None:
        return choose_devices(workers, words)
    try:
        choice = choose_devices(None, setting.names)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{setting.origin}: {exc}") from exc
    return choice._replace(reason=setting.origin)


def require_this_host(words: Sequence[str]) -> None:
    """Raise `ConfigurationError` if arguments, or else the configuration, name another host."""
    given = _Setting(_split(" ".join(words)), "-H") if words else _configured_hosts()
    others = [] if given is None else [name for name in given.names if not _is_this_host(name)]
    if given is not None and others:
        raise ConfigurationError(
            f"{given.origin} names host {', '.join(others)}, and this command runs only on this "
            f"host ({os.uname().nodename}). Name only this host, or localhost; `platoon launch` "
            "runs jobs on several hosts"
        )


def other_hosts_named(words: str | None) -> tuple[list[str], str] | None:
    """Return the hosts that are named and where; None if it is only this host."""
    given = _Setting(_split(words), "--hosts") if words else _configured_hosts()
    if given is None or all(_is_this_host(name) for name in given.names):
        return None
    return given.names, given.origin


def require_one_host(hosts: int | None = None, index: int | None = None) -> None:
    """Raise `ConfigurationError` if an engine started launchers for one job on several hosts."""
    place = find_place(os.environ, hosts, index)
    if place.hosts > 1:
        raise ConfigurationError(
            f"this is host {place.host} of {place.hosts} according to {place.origin}, and this "
            "command runs on one host: each launcher would train a separate model. Start jobs on "
            f"several hosts with `platoon launch`, or {START_ONE}"
        )


def _configured_hosts() -> _Setting | None:
    if names := _split(os.environ.get(HOSTS, "")):
        return _Setting(names, HOSTS)
    for path, config in _files():
        if names := _split(config.get("platoon", "hosts", fallback="")):
            return _Setting(names, f"{path}, hosts")
    return None


def _configured_devices() -> _Setting | None:
    if names := _split(os.environ.get(DEVICES, "")):
        return _Setting(names, DEVICES)
    for path, config in _files():
        for host, text in config.items("devices") if config.has_section("devices") else ():
            if _is_this_host(host) and (names := _split(text)):
                return _Setting(names, f"{path}, {host}")
    return None


def _files() -> Iterator[tuple[Path, configparser.ConfigParser]]:
    """Yield the existing files in order of precedence: the first with a value wins."""
    # As in the original Platoon, files in PLATOONRC come first, from the last to the first.
    named = [_expanded(name) for name in os.environ.get(RC_FILES, "").split(os.pathsep) if name]
    for path in dict.fromkeys([*reversed(named), Path(_FILE), _expanded(f"~/{_FILE}")]):
        config = configparser.ConfigParser(interpolation=None)
        try:
            with path.open() as file:
                config.read_file(file)
        except FileNotFoundError:
            continue
        except PermissionError:
            if path.parent != _expanded("~") or os.access(path.parent, os.X_OK):
                raise
            continue  # A service's user may have no access to its home folder.
        except (OSError, UnicodeDecodeError, configparser.Error) as exc:
            raise ConfigurationError(f"cannot read {path} ({exc}): see docs/launching.md for its format") from exc
        yield path, config


def _expanded(name: str) -> Path:
    return Path(os.path.expanduser(name))


def _is_this_host(name: str) -> bool:
    here, name = os.uname().nodename.lower(), name.lower()
    if name == here or name in _THIS_HOST:
        return True
    # Either name may lack the domain.
    (short, _, domain), (own, _, own_domain) = name.partition("."), here.partition(".")
    return short == own and not (domain and own_domain)


def _split(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text) if word]
