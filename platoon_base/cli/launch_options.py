"""Options of `platoon launch` for the script, the workers, their devices, and the hosts."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import socket
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
from click.core import ParameterSource
from rich.console import Console

from platoon_base.cli import report
from platoon_base.cli.commands.arguments import (
    add_options,
    hint_of_misplaced,
    program_and_args,
    timeout_alias,
    timeout_option,
)
from platoon_base.cli.configuration import chosen_devices, of_script, of_workers, other_hosts_named, require_this_host
from platoon_base.cli.launcher import CENTERS, require_runnable
from platoon_base.compression.codecs import NONE, codec_of
from platoon_base.devices.discovery import Choice
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import Place, engine_addresses, engine_job, find_endpoint, find_place
from platoon_base.job.starting import free_address
from platoon_base.multihost.addresses import key_file, own_address_towards
from platoon_base.multihost.rendezvous import RendezvousInterruptedError
from platoon_base.multihost.start import command_on
from platoon_base.system.environment import HOSTS, HOSTS_COMPRESSION
from platoon_base.system.output import lenient_output
from platoon_base.system.own_files import write_whole
from platoon_base.worker_process.program import Program

_OF_START = (
    click.option(
        "-n",
        "--workers",
        type=int,
        metavar="N",
        callback=of_workers,
        help="Number of workers, on the first N CUDA devices or on the CPU.",
    ),
    click.option(
        "-D",
        "--devices",
        multiple=True,
        metavar="DEV ...",
        callback=of_workers,
        help="One worker for each device, such as cuda0 cuda1. Or one word: cuda for all CUDA "
        "devices, cpu (with -n), or auto, which is cuda if there is one and else cpu.  [auto]",
    ),
    click.option(
        "--center",
        type=click.Choice(CENTERS),
        default="auto",
        show_default=True,
        help="Where the shared parameters are: in shared memory, or on the GPUs, a part on each.",
    ),
    click.option(
        "-m", "--module", is_flag=True, help="SCRIPT is the dotted name of a module; run it as python -m does."
    ),
    timeout_option,
    click.argument("script", type=click.Path()),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, callback=of_script),
)


def start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which passes their values to `StartOptions.read`."""
    return add_options(command, _OF_START)


class StartOptions(NamedTuple):
    console: Console
    program: Program
    args: tuple[str, ...]
    workers: int | None
    devices: tuple[str, ...]
    center: str

    @classmethod
    def read(
        cls,
        workers: int | None,
        devices: tuple[str, ...],
        center: str,
        module: bool,
        script: str,
        args: tuple[str, ...],
    ) -> StartOptions:
        """Open the console, find the program, and print a hint if options follow the script."""
        lenient_output()
        console = report.open_console()
        report.log_to(console)
        program, _ = program_and_args(["-m", script] if module else [script])
        if hint := hint_of_misplaced(click.get_current_context(), program, args):
            report.print_line(console, hint)
        return cls(console, program, args, workers, devices, center)

    @property
    def command(self) -> list[str]:
        """The words of the script's command line."""
        return [*self.program.argv, *self.args]

    def choose(self) -> Choice:
        """Choose the workers' devices; ConfigurationError if there is no program or device."""
        chosen = chosen_devices(self.workers, self.devices)
        require_runnable(self.program, chosen.devices)
        return chosen


_OURS = {"on", "host_names", "script", "args", "config"}
# On Ray these options are for the whole job; each launcher gets its own values.
_OF_JOB = {"workers", "devices", "nnodes", "node_rank", "rdzv_endpoint"}

_OF_ENGINES = (
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


def _start_by_engine(on: str | None, host_names: str | None, nnodes: int | None, node_rank: int | None) -> None:
    """With an engine, start the launchers by it and do not return."""
    context = click.get_current_context()
    if on == "ray":
        raise click.exceptions.Exit(_launch_on_ray(context))
    if host_names == "":
        raise click.BadParameter("got no host names", param_hint="--hosts")
    place = find_place(os.environ, nnodes, node_rank)
    if place.hosts > 1:  # An engine has started the launchers already.
        if host_names:
            raise click.UsageError(
                f"got --hosts {host_names}, and this is host {place.host} of {place.hosts} "
                f"according to {place.origin}: leave --hosts out, as an engine has started "
                "the launchers already"
            )
    elif nnodes != 1 or host_names:
        found = other_hosts_named(host_names)
        if found is not None:
            _start_there(context, *found)
        require_this_host([host_names] if host_names else ())


def given_options(context: click.Context, without: Container[str]) -> list[str]:
    """Return the options of a command line as words, except the parameters in ``without``."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        from_user = context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if isinstance(parameter, click.Option) and name not in without and from_user:
            value = context.params.get(name)
            if value is None:  # The value of the file is ignored, or comes from the environment.
                continue
            option = max(parameter.opts, key=len)
            if parameter.is_flag:
                words += [option] if value else []  # A file may contain false.
            elif isinstance(value, list):  # A callback splits it.
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
    options = given_options(context, _OURS | _OF_JOB)
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


log = logging.getLogger(__name__)


class HostOptions(NamedTuple):
    place: Place
    endpoint: str  # The given address of the first host, or ''.
    encrypted: bool  # Workers encrypt arrays for other hosts.
    compression: str = NONE  # See `platoon_base.compression.codecs.codec_of`.

    def endpoint_here(self) -> str:
        """Return the first host's address, and publish it where needed."""
        if self.endpoint:
            return self.endpoint
        path = self._file()
        endpoint = f"{_address_here()}{free_address('')}"
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
        path = self._file()
        try:
            return path.read_text()
        except OSError:
            return ""

    def _file(self) -> Path:
        path = _endpoint_file()
        if path is None:
            raise ConfigurationError(
                f"this is host {self.place.host} of {self.place.hosts} according to {self.place.origin}, and the "
                "address of host 0 is unknown: pass --rdzv-endpoint HOST:PORT, an address of host 0, on all hosts"
            )
        return path


def _endpoint_file() -> Path | None:
    """Return the file in a shared home folder that holds the first host's address."""
    job = engine_job(os.environ)
    return key_file().with_name(f"endpoint-{job}") if job else None


def _address_here() -> str:
    address = socket.gethostbyname(socket.gethostname())
    if not address.startswith("127."):
        return address
    for text in engine_addresses(os.environ):
        own = own_address_towards(text)
        if own and not own.startswith("127."):
            return own
    raise ConfigurationError(
        f"the name of this host, {socket.gethostname()}, resolves to {address}, which other hosts "
        "cannot reach: pass --rdzv-endpoint HOST:PORT, an address of this host, on all hosts"
    )


def _compression(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        codec_of(text)
    except ConfigurationError as exc:
        raise click.BadParameter(str(exc)) from exc
    return text.strip().lower()


_OF_HOSTS = (
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
    """Add the options to a command, which gets them as ``hosts``; with an engine it is not called."""

    @functools.wraps(command)
    def with_hosts(
        *args: Any,
        on: str | None,
        host_names: str | None,
        nnodes: int | None,
        node_rank: int | None,
        rdzv_endpoint: str | None,
        no_encryption: bool,
        hosts_compression: str,
        **kwargs: Any,
    ) -> Any:
        _start_by_engine(on, host_names, nnodes, node_rank)
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

    return add_options(with_hosts, (*_OF_ENGINES, *_OF_HOSTS))
