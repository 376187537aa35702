"""``platoon join``: add one more worker to a running job."""

from __future__ import annotations

import os

import click

from platoon_base.cli.commands.arguments import SCRIPT, TIMEOUT, program_and_args
from platoon_base.cli.launcher import require_runnable
from platoon_base.job.files import JobFiles
from platoon_base.job.starting import adopt_training, worker_environment
from platoon_base.system.environment import JOB, RANK
from platoon_base.timeouts import change, require_coupled
from platoon_base.worker_process.program import python_main


@click.command("join", context_settings=SCRIPT)
@click.option("-D", "--device", default="cpu", show_default=True, help="The device of the worker, such as cuda1.")
@click.option("--timeout", "texts", **TIMEOUT)
@click.argument("job")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="{SCRIPT | - | -m MODULE} [ARGS]...")
def command(device: str, texts: tuple[str, ...], job: str, words: tuple[str, ...]) -> None:
    """Run SCRIPT, or MODULE as python -m does, as one more worker of JOB (see `platoon jobs`)."""
    if words[0].startswith("-") and words[0] not in ("-", "-m"):
        raise click.UsageError(f"got {words[0]} after JOB: options come before JOB")
    program, args = program_and_args(words)
    require_runnable(program, [device])
    files = JobFiles.find(job)
    files.require_joinable()
    environment = {**worker_environment(device, files.size + 1, os.environ), JOB: files.folder}
    environment.pop(RANK, None)
    if files.training is not None:
        adopt_training(environment, files.training)
    change(environment, texts)
    require_coupled(environment)
    worker = [*python_main("platoon_base.worker_process.child"), *program.argv, *args]
    os.execve(worker[0], worker, environment)  # Python reads PYTHONHASHSEED at its start.
