"""What the scripts in this folder share: paths, errors, running commands, stamps."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CI = ROOT / ".ci"
CACHE = ROOT / ".cache"
VENV = ROOT / ".venv"
STAMP = ".setup-stamp"


class SetupError(Exception):
    """The set-up cannot go on; the message says what was found and what to do."""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(command: list[str | Path], what: str, **options: object) -> str:
    """Run a command, return its output; SetupError with the output when it fails."""
    arguments = [os.fspath(part) for part in command]
    result = subprocess.run(
        arguments,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if result.returncode != 0:
        raise SetupError(f"{what} failed ({' '.join(arguments[:6])} ...):\n{result.stdout.rstrip()}")
    return result.stdout


def fingerprint(files: list[Path], *extra: str) -> str:
    """A hash of the files and words that decide what an environment contains."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
        digest.update(b"\0")
    digest.update("\0".join(extra).encode())
    return digest.hexdigest()


def project_metadata() -> str:
    """What pyproject.toml says about the project itself; its settings of tools change no environment."""
    import tomllib  # Python 3.11, which is checked after this module is imported

    with open(ROOT / "pyproject.toml", "rb") as file:
        parts = tomllib.load(file)
    return json.dumps([parts["build-system"], parts["project"], parts["tool"]["setuptools"]], sort_keys=True)


def read_stamp(venv: Path) -> str | None:
    try:
        return (venv / STAMP).read_text(encoding="utf-8")
    except OSError:
        return None


def succeeds(python: str | Path, code: str, *arguments: str) -> bool:
    """True if the interpreter runs and the code ends without an error."""
    try:
        command = [os.fspath(python), "-c", code, *arguments]
        return subprocess.run(command, cwd=CI, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock of the set-up: two makes at once would write into one environment."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "setup.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another make setup to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fail(error: SetupError) -> int:
    print(f"setup: {error}", file=sys.stderr, flush=True)
    return 1
