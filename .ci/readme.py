"""Do what the README tells a new user to do, from the wheel, in an environment with nothing else in it.

Usage: .venv/bin/python .ci/readme.py [WHEEL]    (without one, it is built as by make dist)

The blocks of README.md count in their order. A line that begins with `pip install` is run with the wheel in the place
of the package's name; one with `platoon` or `python` is run as it stands, if it runs a script that the README gives. A
block of Python is saved if the text before it, its first line, or the command after it names its file. Lines with `git`
and `make` are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.dont_write_bytecode = True

import dist
import venvs
from common import ROOT, SetupError, fail, say

SCRIPT = re.compile(r"[\w/]+\.py\b")
PACKAGE = re.compile(r"(?:platoon-plugins|\.)(\[[\w,]+\])|platoon-plugins\b")
COMMAND = re.compile(r"(?:\w+=\S* )*(?:pip install|python|platoon) ")
TIMEOUT_S = 900


class Step(NamedTuple):
    """A file to write, or else a command to run."""

    file: str
    content: str


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Return the text before each block, its language, and its code."""
    parts = re.split(r"^```(\w*)[^\n]*$", text, flags=re.MULTILINE)
    # Text, language, code, the end of the block (a fence without a language), text, and so on.
    return [(parts[i], parts[i + 1], parts[i + 2].lstrip("\n")) for i in range(0, len(parts) - 3, 4)]


def steps(text: str) -> list[Step]:
    """Return what a reader does, in order; SetupError if there is no script to run."""
    found: list[Step] = []
    all_blocks = blocks(text)
    for i, (before, language, code) in enumerate(all_blocks):
        if language == "python":
            name = _file_of(before, code, all_blocks[i + 1] if i + 1 < len(all_blocks) else None)
            found += [Step(name, code)] if name else []
        elif language in ("sh", "bash", "console"):
            found += [Step("", line) for line in _commands(code)]
    written = {step.file for step in found if step.file}
    runs = [step for step in found if not step.file and set(SCRIPT.findall(step.content)) & written]
    if not runs:
        raise SetupError("README.md has no block of Python that a command runs: name its file in the text before it")
    return [step for step in found if step.file or step in runs or "pip install" in step.content]


def _commands(code: str) -> list[str]:
    lines = [line.strip().removeprefix("$ ") for line in code.replace("\\\n", " ").splitlines()]
    return [line for line in lines if COMMAND.match(line)]


def _file_of(before: str, code: str, following: tuple[str, str, str] | None) -> str:
    """Name the file of a block: by its first line, by the sentence before it, or by the next command."""
    first = code.partition("\n")[0]
    sentence = before.strip().rpartition("\n\n")[2]
    command = "\n".join(_commands(following[2])) if following and following[1] == "sh" and "..." not in code else ""
    for text in (first if first.startswith("#") else "", sentence, command):
        names = SCRIPT.findall(text)
        if names:
            return names[0].rpartition("/")[2]
    return ""


def do(step: Step, folder: Path, venv: Path, wheel: Path) -> None:
    if step.file:
        (folder / step.file).write_text(step.content, encoding="utf-8")
        return
    line = step.content
    say(f"README: {line}")
    if "pip install" in line:
        line = PACKAGE.sub(lambda found: f"{wheel}{found[1] or ''}", line, count=1)
    variables = {**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for name in ("PYTHONPATH", "KERAS_BACKEND", "THEANO_FLAGS"):
        variables.pop(name, None)
    began = time.monotonic()
    status = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=variables, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    ).returncode
    if status:
        raise SetupError(f"the README's `{step.content}` ended with status {status}")
    say(f"done in {time.monotonic() - began:.0f} s")


def main() -> int:
    try:
        found = steps((ROOT / "README.md").read_text(encoding="utf-8"))
        wheel = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else dist.build()[1]
        with tempfile.TemporaryDirectory() as temporary:
            folder, venv = Path(temporary) / "work", Path(temporary) / "venv"
            folder.mkdir()
            venvs.create(venv)
            for step in found:
                do(step, folder, venv, wheel)
    except (SetupError, subprocess.TimeoutExpired) as error:
        return fail(error if isinstance(error, SetupError) else SetupError(str(error)))
    say("the README holds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
