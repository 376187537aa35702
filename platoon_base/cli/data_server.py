"""The process of ``platoon launch --data-server``, which sends mini-batches to the workers."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from platoon_base.controller.watch import described, exit_status
from platoon_base.data.batch_link import report_failure
from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import JOB, LAUNCHER, RANK
from platoon_base.system.job_paths import FILES, path_of
from platoon_base.system.orphan import DATA_SERVER, end_with
from platoon_base.system.own_files import open_log
from platoon_base.timeouts import timeout
from platoon_base.worker_process import child
from platoon_base.worker_process.program import Program, python_main

log = logging.getLogger(__name__)

_EXIT_GRACE_S = 1.0  # The server may exit by itself for this time after all workers.


def split_words(text: str | None) -> list[str]:
    """Split the option's value into an existing script and its arguments; [] without a value."""
    if text is None:
        return []
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise ConfigurationError(f"got --data-server {text!r}, in which a quote is not closed ({exc})") from exc
    if not words:
        raise ConfigurationError("got an empty --data-server: give a script and its arguments in quotes")
    Program(words[0]).require()
    return words


data_server_option = click.option(
    "--data-server",
    metavar="'SCRIPT ARGS'",
    callback=lambda context, parameter, text: split_words(text),
    help="Also run a Python script that sends mini-batches to the workers through "
    "platoon_base.data.BatchServer. Its output is written to data_server.log.",
)


@contextlib.contextmanager
def data_server(words: Sequence[str], folder: str, environment: Mapping[str, str], log_folder: Path) -> Iterator[None]:
    """Run a data server within the ``with`` block; without words do nothing."""
    if not words:
        yield
        return
    variables = {**environment, JOB: folder, LAUNCHER: str(os.getpid())}
    variables.pop(RANK, None)
    log_file = path_of(log_folder, "server_log")
    with os.fdopen(open_log(log_file), "ab", 0) as output:
        process = subprocess.Popen(
            [*python_main("platoon_base.cli.data_server"), *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must reach the workers only.
        )
    watch = threading.Thread(target=_watch, args=(process, folder, log_file), daemon=True)
    try:
        watch.start()
        yield
    finally:
        _end(process)
        watch.join()


def _watch(process: subprocess.Popen[bytes], folder: str, log_file: Path) -> None:
    """Wait for the end of a data server; report it to the user and to waiting workers."""
    status = process.wait()
    how = described(exit_status(status))
    if status == -signal.SIGKILL:
        how += ", by a user or by the kernel because memory ran out"
    if status not in (0, -signal.SIGTERM):
        log.warning("the data server ended (%s): see %s", how, log_file)
    with contextlib.suppress(OSError):  # The job has ended.
        report_failure(folder, f"ended ({how}); see {log_file}", keep=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_GRACE_S)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout("end"))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Run the script on the command line, until it ends or the launcher does."""
    child.set_up_logging()
    end_with(int(os.environ.pop(LAUNCHER)), DATA_SERVER)
    with _reporting_failure(os.environ[JOB]):
        child.main("data server")


@contextlib.contextmanager
def _reporting_failure(folder: str) -> Iterator[None]:
    """Report an exception to workers that wait for the server."""
    try:
        yield
    except BaseException as exc:
        if not isinstance(exc, SystemExit) or exc.code not in (0, None):
            where = f"{FILES['server_log'].name} beside the workers' logs"
            report_failure(folder, f"failed with {type(exc).__name__}: {exc}; see {where}")
        raise


if __name__ == "__main__":
    main()
