"""Completion of commands, options and jobs in a shell, as docs/launching.md switches it on."""

import os
import shutil
import sys

import pytest

from platoon_base.job.files import JobFiles

pytestmark = [pytest.mark.base, pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")]

# What bash does after the Tab key: call the function that is registered for the command, and read COMPREPLY.
PRESS_TAB = """
source <(_PLATOON_COMPLETE=bash_source platoon)
complete -p platoon | grep -q _platoon_completion || exit 3
COMP_WORDS=({words}) COMP_CWORD={last}
_platoon_completion platoon
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def complete(run_command, tmp_path):
    """Press Tab at the end of a line in bash; returns what it offers."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "platoon"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m platoon_base "$@"\n')
    command.chmod(0o755)

    def run(line):
        words = line.split(" ")
        text = PRESS_TAB.format(words=" ".join(word or "''" for word in words), last=len(words) - 1)
        path = f"{command.parent}:{os.environ['PATH']}"
        return run_command("bash", "-c", text, environment={"PATH": path}).require().stdout.split()

    return run


def test_commands_options_and_values_are_completed(complete):
    assert complete("platoon la") == ["launch"]
    assert complete("platoon launch --check") == ["--checkpoint-every"]
    assert complete("platoon launch --tee ") == ["0", "all", "none"]


def test_the_names_of_running_jobs_are_completed(complete):
    files = JobFiles(size=1).create()
    lock = files.lock()
    try:
        assert complete(f"platoon top {files.job[:2]}") == [files.job]
        assert complete("platoon stop ") == [files.job]
    finally:
        lock.close()
        files.remove()
