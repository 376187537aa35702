"""Where the tests find Blocks, which no package index has: in a checkout that BLOCKS names, in .venv, or nowhere.

What is not in .venv is installed there from its repository, if that can be reached.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from common import ROOT, VENV, SetupError, only_one, run, say

from platoon_plugins.registrations.blocks import BLOCKS

TIMEOUT_S = 60.0
REMEDY = "BLOCKS=/path/to/a/checkout make test runs its tests"
# There are other packages of this name: the second one has to be there too.
IDENTIFY = """
import importlib.util, os
from platoon_base import compat
compat.apply()
import blocks
if importlib.util.find_spec("blocks.main_loop") is None:
    raise ImportError(f"{blocks.__path__} is another package of this name")
print(blocks.__version__, os.path.dirname(blocks.__path__[0]))
"""


class Blocks(NamedTuple):
    """Which Blocks the tests run with, or why they do not, and the environment variables that it takes."""

    outcome: str
    environment: dict[str, str]


def find() -> Blocks:
    """Return the Blocks to test with; SetupError if BLOCKS names none."""
    named = os.environ.get("BLOCKS")
    if named:
        return in_checkout(named)
    with contextlib.suppress(SetupError):
        return Blocks(identify({}), {})
    with only_one():
        say("installing Blocks from its repository")
        problem = install(BLOCKS, TIMEOUT_S)
    if problem:
        return Blocks(f"skipped: {problem}; {REMEDY}", {})
    return Blocks(identify({}), {})


def in_checkout(named: str) -> Blocks:
    folder = Path(named).expanduser().absolute()
    module = folder / "blocks" / "__init__.py"
    if not module.is_file():
        raise SetupError(f"got BLOCKS={named}, but there is no {module}: name the folder that Blocks was cloned into")
    paths = [str(folder), os.environ.get("PYTHONPATH")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return Blocks(identify(environment), environment)


def identify(environment: dict[str, str]) -> str:
    """Tell the version and the place of the Blocks that the tests would import; SetupError if there is none."""
    python = VENV / "bin" / "python"
    found = run([python, "-c", IDENTIFY], "importing Blocks", env={**os.environ, **environment})
    version, _, folder = found.strip().splitlines()[-1].partition(" ")
    return f"{version}, {'in .venv' if Path(folder).is_relative_to(VENV) else f'from {folder}'}"


def install(reference: str, timeout_s: float) -> str:
    """Install Blocks beside what it needs, asking nothing; return why that failed in a few words, or nothing."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    options = ["--no-deps", "--no-build-isolation", reference]
    # What a killed pip leaves goes with the folder; `reason_of` reads English.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "TMPDIR": folder}
        with subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return f"not installed within {timeout_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # git too, which would hold the pipe open
    return f"cannot be installed ({reason_of(output)})" if process.returncode else ""


def reason_of(output: str) -> str:
    """Pick what git says, or else pip's last word, out of all that pip prints."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["pip says nothing"]
    from_git = [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]
    line = from_git[0] if from_git else lines[-1].removeprefix("ERROR: ")
    # git's "unable to access 'URL': why"
    return textwrap.shorten(line.rpartition("': ")[2], 100, placeholder=" ...")
