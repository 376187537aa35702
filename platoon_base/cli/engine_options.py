"""Options of ``platoon launch`` for engines that start the launchers: ``--on`` and ``--hosts``."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from platoon_base.cli.configuration import other_hosts_named, require_this_host
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.place import find_place
from platoon_base.multihost.start import command_on
from platoon_base.system.environment import HOSTS

__all__ = ["engine_options"]

_OURS = {"on", "host_names", "script", "args", "config"}
# On Ray these options are for the whole job; each launcher gets its own values.
_OF_HOSTS = {"workers", "devices", "nnodes", "node_rank", "rdzv_endpoint"}

_OPTIONS = (
    click.option(
        "--on",
        type=click.Choice(["ray"]),
        help="Start the workers on nodes of a Ray cluster: -n workers in total, on as few nodes "
        "as possible or on --nnodes.",
    ),
    click.option(
        "--hosts",
        "host_names",
        metavar="A,B...",
        help="Start a launcher on each of these hosts, the first one as host 0, by Slurm within "
        "an allocation or by mpirun of Open MPI. -n and -D apply to each host.  "
        "[PLATOON_HOSTS or .platoonrc, else this host]",
    ),
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; with an engine the command itself is not called."""

    @functools.wraps(command)
    def with_engines(*args: Any, on: str | None, host_names: str | None, **kwargs: Any) -> Any:
        context = click.get_current_context()
        if on == "ray":
            raise click.exceptions.Exit(_launch_on_ray(context))
        if host_names == "":
            raise click.BadParameter("got no host names", param_hint="--hosts")
        place = find_place(os.environ, context.params.get("nnodes"), context.params.get("node_rank"))
        if place.hosts > 1:  # An engine has started the launchers already.
            if host_names:
                raise click.UsageError(
                    f"got --hosts {host_names}, and this is host {place.host} of {place.hosts} "
                    f"according to {place.origin}: leave --hosts out, as an engine has started "
                    "the launchers already"
                )
        elif context.params.get("nnodes") != 1 or host_names:
            found = other_hosts_named(host_names)
            if found is not None:
                _start_there(context, *found)
            require_this_host([host_names] if host_names else ())
        return command(*args, **kwargs)

    wrapped: Callable[..., Any] = with_engines
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def given_options(context: click.Context, without: Container[str]) -> list[str]:
    """Return the options of a command line as words, except the parameters in ``without``."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        from_user = context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if isinstance(parameter, click.Option) and name not in without and from_user:
            value = context.params.get(name)
            if value is None:  # ignored value of the file, or one that is in the environment
                continue
            option = max(parameter.opts, key=len)
            if parameter.is_flag:
                words += [option] if value else []  # A file may contain false.
            elif isinstance(value, list):  # split by a callback
                words += [option, shlex.join(value)]
            elif parameter.multiple:
                words += [word for each in value for word in (option, str(each))]
            else:
                words += [option, str(value)]
    return words


def _script(context: click.Context) -> list[str]:
    script: str = context.params["script"]
    if script == "-":
        raise ConfigurationError("got the script on standard input, and each host needs it as a file: name a file")
    return ["--", script, *context.params["args"]]


def _start_there(context: click.Context, hosts: list[str], origin: str) -> NoReturn:
    """Replace this process by the command that starts the launchers."""
    words = [sys.executable, "-m", "platoon_base", "launch", *given_options(context, _OURS), *_script(context)]
    # Each launcher must start its workers on its own host.
    environment = {**os.environ, HOSTS: "localhost"}
    command = command_on(hosts, words, environment, origin)
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)


def _launch_on_ray(context: click.Context) -> int:
    from platoon_base.multihost import ray

    given = context.params
    devices = given["devices"] or ("auto",)
    if given["workers"] is None:
        raise click.UsageError("--on ray needs -n N, the total number of workers")
    if len(devices) > 1:
        raise click.UsageError(f"got -D {' '.join(devices)}: on Ray pass cuda or cpu; Ray chooses the devices")
    for name in ("node_rank", "rdzv_endpoint"):
        if given[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"got {option} and --on ray: Ray numbers the hosts itself; leave {option} out")
    options = given_options(context, _OURS | _OF_HOSTS)
    script = _script(context)[1]
    if not given["module"] and Path(script).exists():
        script = str(Path(script).absolute())
    return ray.launch(
        script,
        given["args"],
        workers=given["workers"],
        device=devices[0],
        hosts=given["nnodes"],
        options=[*options, "--"],
    )
