"""The TOML file of ``platoon launch --config``: the options by their long names, and the script."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from platoon_base.devices.discovery import KINDS
from platoon_base.errors import ConfigurationError
from platoon_base.system.text import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

__all__ = ["config_option", "of_script", "of_workers"]

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
