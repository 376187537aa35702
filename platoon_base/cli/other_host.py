"""``platoon launch`` on several hosts: host 0 waits for the others, which serve their workers."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from platoon_base.cli import report
from platoon_base.cli.data_server import data_server
from platoon_base.cli.launch_options import HostOptions, StartOptions
from platoon_base.cli.launcher import choose_center, preloaded
from platoon_base.cli.run_files import log_folder
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.job.files import Origin
from platoon_base.job.hosting import require_descriptors_for
from platoon_base.job.starting import adopt_training, worker_environment, worker_starts
from platoon_base.links.peer import LinkClient
from platoon_base.links.stream import require_cipher
from platoon_base.multihost import messages as between
from platoon_base.multihost.deputy import host_deputy
from platoon_base.multihost.hosts import HostTable
from platoon_base.multihost.rendezvous import arrive, fingerprint, gather_hosts, introduction
from platoon_base.system.folder_lock import is_locked


@contextlib.contextmanager
def other_hosts(
    console: Console, hosts: HostOptions, here: between.Arrive, signals: StopSignals
) -> Iterator[HostTable]:
    """Wait, on the first host, until the others have joined; yield their table."""
    say = functools.partial(report.print_line, console)
    require_cipher()
    try:
        with gather_hosts(
            hosts.endpoint_here(),
            here,
            signals,
            say,
            encrypted=hosts.encrypted,
            compression=hosts.compression,
        ) as table:
            hosts.forget_endpoint()
            yield table
    finally:
        hosts.forget_endpoint()


def serve_other_host(start: StartOptions, hosts: HostOptions, log_folder: Path | None, server: Sequence[str]) -> int:
    """Start and serve the workers of a host other than the first; return the exit status."""
    require_cipher()
    problem: PlatoonError | None = None
    devices: list[str] = []
    try:
        devices = start.choose().devices
        choose_center("host" if start.center == "auto" else start.center, devices)
        require_descriptors_for(len(devices))
    except PlatoonError as exc:
        problem = exc
    program = fingerprint(start.program, start.args)
    here = introduction(hosts.place, devices, program, "" if problem is None else str(problem))
    say = functools.partial(report.print_line, start.console)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        link, welcome = stack.enter_context(arrive(hosts.endpoint_there, here, signals, say))
        if problem is not None:
            with contextlib.suppress(ConfigurationError):
                welcome()  # Waits until the first host has refused this one.
            raise problem
        again = True
        while again:
            over = _serve_job(start, devices, log_folder, server, signals, link, welcome())
            again = over.again
        say(f"the job has ended: {over.text}")
        signals.ignore_from_now_on()
    return over.status


def _serve_job(
    start: StartOptions,
    devices: Sequence[str],
    given_folder: Path | None,
    server: Sequence[str],
    signals: StopSignals,
    link: LinkClient,
    welcome: between.Welcome,
) -> between.JobOver:
    program, args, world = start.program, start.args, welcome.world
    folder = given_folder or Path(welcome.log_folder)
    ranks = world.ranks_here
    with contextlib.ExitStack() as stack:
        if not is_locked(folder):  # On a shared file system the first host has opened it already.
            stack.enter_context(log_folder(folder))
        report.print_line(
            start.console,
            f"host {world.host} of {world.hosts}: workers {ranks.start} to {ranks.stop - 1} of "
            f"job {welcome.job}; host 0 ({world.names[0]}) has the table; logs in {folder}",
        )
        origin = Origin(start.command, list(devices), str(folder.absolute()))
        adopt_training(os.environ, welcome.training)
        deputy = stack.enter_context(host_deputy(link, welcome, origin))
        environment = worker_environment("cpu", len(devices), os.environ)
        stack.enter_context(data_server(server, deputy.files.folder, environment, folder))
        starts = worker_starts(program, args, devices, folder, world, welcome.framework_address)
        deputy.start(program, args, preloaded(program, devices), starts)
        return deputy.serve(signals)
