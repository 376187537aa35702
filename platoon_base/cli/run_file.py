"""The TOML file of ``platoon launch --config``: it describes a run by the names of the options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from platoon_base.devices.discovery import KINDS
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule, default_period, parse_rule, rule_names, settings_of
from platoon_base.system.environment import EVERY_N_BATCHES, RULE
from platoon_base.system.text import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

__all__ = ["config_option", "of_script", "of_workers", "training_line"]

_TRAINING, _LINE, _ARGS = "training", "platoon_base.training_line", "platoon_base.args"
_PERIODS = ("every_n_batches", "avg_freq")
# Names of Theano-MPI. With a period of 1 and SGD, LocalSGD is SGD on the batches of all workers.
_THEANO_MPI = {"BSP": "LocalSGD", "GOSGD": "GoSGD"}
# Keys of other packages, and their replacements here.
_ELSEWHERE = {
    **dict.fromkeys(("sync_rule", "rule", *_PERIODS), f"it belongs below [{_TRAINING}], as rule and avg_freq"),
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
            raise ConfigurationError(f"got --config {path}: it cannot be read: {exc.strerror}") from exc
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            raise ConfigurationError(f"got --config {path}, which is no TOML file: {exc}; see docs/config.md") from exc

    def at(self, key: str, table: str = "") -> str:
        """Return the file with the line of a key of a table, if found."""
        inside = not table
        key = re.escape(key).replace(r"\-", "[-_]")
        for number, line in enumerate(self._text.splitlines(), 1):
            if heading := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
                inside = heading[1] == table
                found = not table and re.fullmatch(key, heading[1]) is not None
            else:
                found = inside and re.match(rf"\s*[\"']?{key}[\"']?\s*[=.]", line) is not None
            if found:
                return f"{self._path}, line {number}"
        return str(self._path)

    def require_known(self, keys: Iterable[str], known: Iterable[str], table: str = "") -> None:
        known = sorted(set(known))
        texts = []
        for key in keys:
            if key not in known:
                elsewhere = f"; {_ELSEWHERE[key]}" if not table and key in _ELSEWHERE else ""
                text = f"{self.at(key, table)}: there is no key {key}{f' below [{table}]' if table else ''}{elsewhere}"
                texts.append(text if elsewhere else f"{text}.{did_you_mean(key, known) or _all_of(known)}")
        if texts:
            raise ConfigurationError("\n".join(texts))


def _all_of(known: Iterable[str]) -> str:
    return f" There are {', '.join(known)}"


def _read(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Make the values of the file the defaults of the command line."""
    if path is None or context.resilient_parsing:
        return path
    file = _File(path)
    options = {_key(each): each for each in context.command.params if isinstance(each, click.Option)}
    for key in ("config", "help"):
        options.pop(key, None)
    values: dict[str, Any] = {}
    for key, value in file.values.items():
        name = key.replace("_", "-")
        if name in values:
            raise ConfigurationError(f"{file.at(name)}: got {name} twice, with - and with _: leave one of them out")
        values[name] = value
    known = [*options, "script", "args", _TRAINING]
    file.require_known([key for key in file.values if key.replace("_", "-") not in known], known)
    defaults = {
        option.name or "": _value(context, file, option, values[key])
        for key, option in options.items()
        if key in values
    }
    defaults.update(_script(file, values))
    context.meta[_ARGS] = _args(file, values)  # click < 8.2 has no default for nargs=-1
    context.default_map = {**(context.default_map or {}), **defaults}
    if _TRAINING in values:
        context.meta[_LINE] = _set_training(file, path, values[_TRAINING])
    return path


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    callback=_read,
    metavar="FILE.toml",
    help="Read script, args, options and the training's rule from a file; the command line wins over it.",
)


def _key(option: click.Option) -> str:
    return max(option.opts, key=len).lstrip("-")


def _value(context: click.Context, file: _File, option: click.Option, value: Any) -> Any:
    """Return a value in the type that the option takes from the command line."""
    key = _key(option)
    if isinstance(value, dict) or isinstance(value, bool) != option.is_flag:
        wanted = "true or false" if option.is_flag else "a text or a number"
        raise ConfigurationError(f"{file.at(key)}: got {key} = {_toml(value)}: it must be {wanted}")
    if option.multiple:
        return [str(each) for each in value] if isinstance(value, list) else str(value).split()
    # As text: click would truncate the number 2.5.
    text = value if isinstance(value, bool) else ",".join(map(str, value if isinstance(value, list) else [value]))
    try:
        option.type_cast_value(context, text)
    except click.BadParameter as exc:
        raise ConfigurationError(f"{file.at(key)}: got {key} = {_toml(value)}: {exc.message}") from exc
    return text


def _script(file: _File, values: Mapping[str, Any]) -> dict[str, str]:
    if "script" not in values:
        return {}
    if not isinstance(values["script"], str) or not values["script"]:
        raise ConfigurationError(f"{file.at('script')}: got script = {_toml(values['script'])}: it must be a path")
    return {"script": values["script"]}


def _args(file: _File, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of the script; a table becomes options."""
    args = values.get("args", [])
    if not isinstance(args, (list, dict)):
        raise ConfigurationError(
            f'{file.at("args")}: got args = {_toml(args)}: write args = ["--epochs", "10"], or a table [args] with '
            "epochs = 10"
        )
    table = "args" if isinstance(args, dict) else ""
    for key, value in args.items() if isinstance(args, dict) else [("args", args)]:
        if any(isinstance(each, (list, dict)) for each in (value if isinstance(value, list) else [value])):
            raise ConfigurationError(
                f"{file.at(key, table)}: got {key} = {value!r}: no word of a command line says that; write texts, "
                "numbers, true, false, or a list of these"
            )
    return tuple(str(each) for each in args) if isinstance(args, list) else tuple(_options_of(args))


def _options_of(table: Mapping[str, Any]) -> list[str]:
    """Return a table as options: ``rate = 0.1`` is ``--rate 0.1``, ``fast = true`` ``--fast``."""
    words = []
    for key, value in table.items():
        if value is not False:
            words.append(f"--{key}")
            words += [] if value is True else [str(each) for each in (value if isinstance(value, list) else [value])]
    return words


def _set_training(file: _File, path: Path, table: Any) -> str:
    """Set the environment variables for scripts without a rule; return a line about it."""
    if not isinstance(table, dict):
        raise ConfigurationError(f'{file.at(_TRAINING)}: write a table [{_TRAINING}] with rule = "EASGD"')
    if set(_PERIODS) <= set(table):
        raise ConfigurationError(
            f"{file.at('avg_freq', _TRAINING)}: avg_freq is every_n_batches: leave one of them out"
        )
    period = next((table[name] for name in _PERIODS if name in table), None)
    name = next(name for name in _PERIODS if name in table) if period is not None else ""
    if name and (not isinstance(period, int) or isinstance(period, bool) or period < 1):
        where = file.at(name, _TRAINING)
        raise ConfigurationError(f"{where}: got {name} = {_toml(period)}: it counts batches, from 1")
    rule = _rule(file, table)
    if RULE in os.environ:
        return f"{path}: its [{_TRAINING}] is left out, since {RULE} is set"
    if rule is not None:
        os.environ[RULE] = settings_of(rule)
        if period is None:
            period = 1 if table["rule"] == "BSP" else default_period(rule)
    if period is not None:
        os.environ.setdefault(EVERY_N_BATCHES, str(period))
    what = "the default rule" if rule is None else settings_of(rule)
    every = os.environ.get(EVERY_N_BATCHES, period)
    return f"{path}: {what}, every {every} batches, where the script does not say"


def _rule(file: _File, table: Mapping[str, Any]) -> Rule | None:
    arguments = {key: value for key, value in table.items() if key not in ("rule", *_PERIODS)}
    if "rule" not in table:
        file.require_known(arguments, ["rule", *_PERIODS], _TRAINING)
        return None
    name, where = table["rule"], file.at("rule", _TRAINING)
    names = [*_THEANO_MPI, *rule_names()]
    if not isinstance(name, str) or (name not in names and "(" not in name):
        like = did_you_mean(str(name), names) or did_you_mean(str(name).upper(), names) or _all_of(names)
        raise ConfigurationError(f"{where}: there is no rule {name}.{like}")
    if "(" in name and arguments:
        raise ConfigurationError(f"{where}: {name} has arguments already: write {', '.join(arguments)} there too")
    kind = _THEANO_MPI.get(name, name)
    if arguments:
        file.require_known(arguments, ["rule", *_PERIODS, *rule_names()[kind]], _TRAINING)
    text = f"{kind}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else kind
    return parse_rule(text, f"{where}, rule")


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


def training_line(context: click.Context) -> str:
    line: str = context.meta.get(_LINE, "")
    return line
