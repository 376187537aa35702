"""What `platoon launch` writes, serves and tracks of a job: each module here is found by itself.

A module has an `OPTION` of its own, a `Tracker` for ``--tracker NAME``, or both.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import click

from platoon_base.cli.commands.arguments import add_options
from platoon_base.cli.observers import Observed, Observer, Option, TrackedRun, Tracker
from platoon_base.errors import ConfigurationError
from platoon_base.system.text import did_you_mean

__all__ = ["require_package", "tracker_options"]


def _modules() -> list[Any]:
    found = pkgutil.iter_modules(__path__)
    return [importlib.import_module(f"{__name__}.{each.name}") for each in found]


def require_package(package: str, install: str, given: str) -> None:
    """Raise `ConfigurationError` with the line that installs a package, unless it is installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(f"got {given}, which needs {package}, and it is not installed: {install}")


def _load(name: str, known: dict[str, type[Tracker]]) -> type[Tracker]:
    """Return the class of a tracker, which is installed."""
    given = f"--tracker {name}"
    if name in known:
        require_package(*known[name].needs, given)
        return known[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        names = f"{', '.join(known)}, or module:Class"
        raise click.BadParameter(f"there is no tracker {name!r}: it is one of {names}.{did_you_mean(name, known)}")
    if os.getcwd() not in sys.path:  # As for a script that `python` runs.
        sys.path.insert(0, os.getcwd())
    try:
        made: type[Tracker] = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(f"got {given}, which cannot be imported: {exc}") from exc
    return made


def tracker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; its argument ``trackers`` makes the observers of a job."""
    modules = _modules()
    options: list[Option] = [module.OPTION for module in modules if hasattr(module, "OPTION")]
    known = {module.__name__.rpartition(".")[2]: module.Tracker for module in modules if hasattr(module, "Tracker")}

    def load(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> dict[str, type[Tracker]]:
        return {} if context.resilient_parsing else {name: _load(name, known) for name in names}

    @functools.wraps(command)
    def with_trackers(*args: Any, tracker: dict[str, type[Tracker]], **kwargs: Any) -> Any:
        given = [(option, kwargs.pop(option.parameter)) for option in options]

        def make(job: Observed) -> list[Observer]:
            observers = [option.make(value, job) for option, value in given if value is not None]
            return [*observers, *(TrackedRun(name, made, job) for name, made in tracker.items())]

        return command(*args, trackers=make, **kwargs)

    tracker_option = click.option(
        "--tracker",
        multiple=True,
        metavar="NAME",
        callback=load,
        help=f"Record the job as one run of a tracker: {', '.join(known)}, or module:Class of your own. Repeatable.",
    )
    return add_options(with_trackers, [tracker_option, *(each.option for each in options)])
