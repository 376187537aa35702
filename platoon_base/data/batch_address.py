"""The address of a batch server: a socket in the folder of its job, private to the job's user."""

from __future__ import annotations

import os
import re
from pathlib import Path

from platoon_base.errors import ConfigurationError
from platoon_base.job.files import JobFiles
from platoon_base.system.environment import JOB
from platoon_base.system.job_paths import path_of

__all__ = ["batch_address", "expected_readers", "failure_of_server", "report_failure"]

_NAME = re.compile(r"[0-9A-Za-z._-]{1,40}")


def batch_address(address: str | None = None, name: str = "batches", folder: str | None = None) -> str:
    """Return the path of a batch server's socket; a given ``address`` takes precedence."""
    if address is not None:
        return os.path.abspath(address)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"got the name {name!r} for a batch server: use up to 40 letters, digits, '.', '_', '-'"
        )
    folder = folder or os.environ.get(JOB)
    if not folder:
        raise ConfigurationError(
            "there is no job to which a batch server could belong: start with `platoon launch`, "
            "or pass the same address to server and readers, a path such as /tmp/me/batches. To "
            "load ahead without a server use load_ahead"
        )
    return str(path_of(os.path.abspath(folder), "batches", server=name))


def report_failure(folder: str, text: str, keep: bool = False) -> None:
    """Record that a job's server has failed; with ``keep`` an earlier report stays."""
    path = path_of(folder, "server_failure")
    if keep and os.path.exists(path):
        return
    Path(f"{path}.new").write_text(text, errors="backslashreplace")
    os.replace(f"{path}.new", path)


def failure_of_server(address: str) -> str:
    """Return the error of the server for an address; empty if no failure is known."""
    try:
        return path_of(os.path.dirname(address), "server_failure").read_text(errors="replace")
    except OSError:
        return ""


def expected_readers(address: str | None) -> int:
    """Return the number of workers that a server expects by default."""
    folder = os.environ.get(JOB)
    return 1 if address is not None or not folder else JobFiles.read(folder).size
