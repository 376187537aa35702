"""The main function of a worker process: prepares the process, then runs the user's script.

Usage: ``python -m platoon_base.worker_process.child script.py args``, or ``-m package.module
args``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from platoon_base import compat
from platoon_base.devices import isolation
from platoon_base.frameworks.registered import registered
from platoon_base.system.environment import DEVICE, ERROR_FILE, JOB, LAUNCHER, RANK, seed_generators
from platoon_base.system.orphan import end_with, is_watched
from platoon_base.system.output import lenient_output, watch_output
from platoon_base.system.process import accept_interrupts, keep_interrupts
from platoon_base.system.text import legible
from platoon_base.system.warn import log_warnings
from platoon_base.worker_process import apart
from platoon_base.worker_process.breakpoints import hook_breakpoints
from platoon_base.worker_process.failure import note_lost_output, recorded
from platoon_base.worker_process.program import Program

# Without this variable a long title overwrites what /proc/PID/environ shows.
_KEEP_ENVIRONMENT = "SPT_NOENV"


def main(role: str = "") -> None:
    """Run the program on the command line as ``python`` would, with the shims that it may need."""
    accept_interrupts()
    program, args = Program.of(sys.argv[1:])
    show(program, role)
    set_up_logging()
    compat.apply()
    device = os.environ.get(DEVICE, "cpu")
    isolation.watch_theano(device)
    isolation.keep_to(device)
    run(program, args)


def show(program: Program, role: str = "") -> None:
    """Show this process in `ps` with its program and its role in the job."""
    device, rank = os.environ.get(DEVICE, "cpu"), os.environ.get(RANK)
    if not role and JOB in os.environ:
        role = f"joined {device}" if rank is None else f"rank {rank} {device}"
    _set_title(program.shown, role)


def _set_title(program: str, role: str = "") -> None:
    """Set the title ``platoon: PROGRAM ROLE``; in `top` the role is first."""
    try:
        import setproctitle
    except ImportError:  # The title is optional.
        return
    program = legible(program).replace("\0", "")
    was_set = _KEEP_ENVIRONMENT in os.environ
    os.environ.setdefault(_KEEP_ENVIRONMENT, "1")
    try:
        setproctitle.setproctitle(f"platoon: {program} {role}".rstrip())
    finally:
        if not was_set:
            del os.environ[_KEEP_ENVIRONMENT]
    device = role.rpartition(" ")[2] if role.startswith("rank ") else ""
    setproctitle.setthreadtitle(f"{role.removesuffix(f' {device}')} {program}".strip())


def run(program: Program, args: Sequence[str]) -> None:
    """Run a program and record the exception that ends it; this process ends after its launcher."""
    # Processes started by the script have another parent.
    launcher = os.environ.pop(LAUNCHER, "")
    if launcher.isdigit() and not is_watched():
        end_with(int(launcher))
    keep_interrupts()
    hook_breakpoints()
    apart.begin()
    seed_generators()
    with recorded(program.folder):
        program.run(args)


def set_up_logging() -> None:
    """Log this package's messages to standard error, with the rank in each line."""
    # The root logger stays as it is, for `logging.basicConfig` of a script.
    if ERROR_FILE in os.environ:
        watch_output(note_lost_output)
        lenient_output()
    handler = logging.StreamHandler()
    rank = os.environ.get(RANK, "-")
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"))
    for name in {"platoon_base", *registered().packages}:
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
    log_warnings()


if __name__ == "__main__":
    main()
