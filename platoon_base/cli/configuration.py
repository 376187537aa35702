"""What is configured outside the command line: hosts, devices, and the file of `--config`."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from platoon_base.devices.discovery import KINDS, Choice, choose_devices
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import START_ONE, find_place
from platoon_base.system.environment import DEVICES, HOSTS, RC_FILES
from platoon_base.system.text import did_you_mean

_FILE = ".platoonrc"
_THIS_HOST = ("localhost", "127.0.0.1")


class _Setting(NamedTuple):
    """Configured names, and where they were configured."""

    names: list[str]
    origin: str


def chosen_devices(workers: int | None, words: Sequence[str]) -> Choice:
    """Choose the workers' devices: by ``-n`` and ``-D``, else as configured, else all available."""
    setting = _configured(DEVICES, "devices", _is_this_host) if workers is None and not words else None
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


def require_one_host() -> None:
    """Raise `ConfigurationError` if an engine started launchers for one job on several hosts."""
    place = find_place(os.environ)
    if place.hosts > 1:
        raise ConfigurationError(
            f"this is host {place.host} of {place.hosts} according to {place.origin}, and this "
            "command runs on one host: each launcher would train a separate model. Start jobs on "
            f"several hosts with `platoon launch`, or {START_ONE}"
        )


def _configured(variable: str, section: str, is_wanted: Callable[[str], bool]) -> _Setting | None:
    """Return the names in a variable, or else those of the first wanted key of a section in the files."""
    if names := _split(os.environ.get(variable, "")):
        return _Setting(names, variable)
    for path, config in _files():
        for key, text in config.items(section) if config.has_section(section) else ():
            if is_wanted(key) and (names := _split(text)):
                return _Setting(names, f"{path}, {key}")
    return None


def _configured_hosts() -> _Setting | None:
    return _configured(HOSTS, "platoon", lambda key: key == "hosts")


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


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_ARGS = "platoon_base.args"
_TRAINING = 'write rule = "EASGD(alpha=0.25)" and every-n-batches = 4, above all tables'
# Keys of other packages and of earlier versions, and their replacements.
_ELSEWHERE = {
    **dict.fromkeys(("training", "sync_rule", "avg_freq", "every_n_batches"), _TRAINING),
    **dict.fromkeys(
        ("model", "data", "modelfile", "modelclass"), "it is an option of your script: put it below [args]"
    ),
    **dict.fromkeys(("device", "gpus"), 'write devices = ["cuda0", "cuda1"]'),
    **dict.fromkeys(("n", "nproc_per_node", "num_processes", "size"), "write workers = N"),
    "sync_start": "leave it out: workers may join at any time",
    "random": "write seed = N",
}


class _File:
    """The file of a run; it can tell the lines of its keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._text = path.read_bytes().decode("utf-8-sig")  # Windows editors write a BOM.
            self.values: dict[str, Any] = tomllib.loads(self._text)
        except OSError as exc:
            raise ConfigurationError(f"got --config {path}: cannot read it: {exc.strerror}") from exc
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            raise ConfigurationError(
                f"got --config {path}, which is not a TOML file: {exc}; see docs/config.md"
            ) from exc

    def error(self, key: str, text: str, table: str = "") -> ConfigurationError:
        """Return an error that names the line of a key of a table, if found."""
        where, inside = str(self._path), not table
        for number, line in enumerate(self._text.splitlines(), 1):
            if heading := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
                inside = heading[1] == table
                found = not table and heading[1] == key
            else:
                found = inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line) is not None
            if found:
                where = f"{where}, line {number}"
                break
        return ConfigurationError(f"{where}: {text}")


def _read(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Make the values of the file the defaults of the command line."""
    if path is None or context.resilient_parsing:
        return path
    file = _File(path)
    options = {max(each.opts, key=len)[2:]: each for each in context.command.params if isinstance(each, click.Option)}
    known = sorted({*options, "script", "args"} - {"config", "help"})
    defaults: dict[str, Any] = {}
    for key, value in file.values.items():
        if key not in known:
            hint = f"; {_ELSEWHERE[key]}" if key in _ELSEWHERE else f".{did_you_mean(key, known)}"
            raise file.error(key, f"there is no key {key}{hint}")
        if key in options:
            defaults[options[key].name or ""] = _value(context, file, options[key], key, value)
    if "script" in file.values:
        defaults["script"] = file.values["script"]
        if not isinstance(defaults["script"], str) or not defaults["script"]:
            raise file.error("script", f"got script = {_toml(defaults['script'])}: it must be a path")
    context.meta[_ARGS] = tuple(_args(file, file.values.get("args", [])))  # click < 8.2 has no default for nargs=-1
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    callback=_read,
    metavar="FILE.toml",
    help="Read script, arguments and options from a file. The command line has priority.",
)


def _value(context: click.Context, file: _File, option: click.Option, key: str, value: Any) -> Any:
    """Return a value in the type that the option takes from the command line."""
    if isinstance(value, dict) or isinstance(value, bool) != option.is_flag:
        wanted = "true or false" if option.is_flag else "a string or a number"
        raise file.error(key, f"got {key} = {_toml(value)}: it must be {wanted}")
    if option.multiple:
        return [str(each) for each in value] if isinstance(value, list) else str(value).split()
    # As text: click would truncate the number 2.5.
    text = value if isinstance(value, bool) else ",".join(map(str, value if isinstance(value, list) else [value]))
    try:
        option.type_cast_value(context, text)
    except click.BadParameter as exc:
        raise file.error(key, f"got {key} = {_toml(value)}: {exc.message}") from exc
    return text


def _args(file: _File, args: Any) -> Iterator[str]:
    """Yield the arguments of the script; ``rate = 0.1`` is ``--rate 0.1``, ``fast = true`` ``--fast``."""
    if not isinstance(args, (list, dict)):
        raise file.error(
            "args", f'got args = {_toml(args)}: write args = ["--epochs", "10"], or a table [args] with epochs = 10'
        )
    table = isinstance(args, dict)
    for key, value in args.items() if isinstance(args, dict) else [("args", args)]:
        words = value if isinstance(value, list) else [value]
        if any(isinstance(each, (list, dict)) for each in words):
            raise file.error(
                key,
                f"got {key} = {value!r}, which cannot be written on a command line: write "
                "strings, numbers, true, false, or a list of these",
                "args" if table else "",
            )
        if table and value is not False:
            yield f"--{key}"
        if not isinstance(value, bool):
            yield from map(str, words)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def of_script(context: click.Context, parameter: click.Parameter, args: tuple[str, ...]) -> tuple[str, ...]:
    """Return the file's arguments, unless the command line names a script."""
    named = context.get_parameter_source("script") is ParameterSource.COMMANDLINE
    from_file: tuple[str, ...] = context.meta.get(_ARGS, ())
    return args if named else from_file


def of_workers(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Ignore the file's number of workers if the command line names devices, and vice versa."""
    number, devices = "workers", "devices"
    other = devices if parameter.name == number else number
    from_file = context.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT_MAP
    if not from_file or context.get_parameter_source(other) is not ParameterSource.COMMANDLINE:
        return value
    words = value if parameter.name == devices else context.params[devices]
    return value if len(words) == 1 and words[0] in KINDS else () if parameter.name == devices else None
