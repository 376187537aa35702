"""Pictures of a terminal in which a job runs, taken by tmux and compared with those in ``corpus/screens``."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from watching import until

pytestmark = [
    pytest.mark.base,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux: apt-get install tmux"),
]

PICTURES = Path(__file__).parents[1] / "corpus" / "screens"
# No steps are counted, so no rate changes from run to run.
SCRIPT = """
    import signal
    from platoon_base import connect

    worker = connect()
    rank = worker.global_rank
    if rank % 4 == 3:
        worker.announce(bound=True)
    elif rank % 4 != 2:
        worker.progress(epoch=3, loss=0.5 / (rank + 1))
        worker.announce(last_epoch=50, limit="patience 3/15")
    if rank == 0:
        print("a line of the script")
        worker.report({f"measure_{i}": i / 8 for i in range(12)})
        worker.report({"note": "a text of several words, which is longer than sixty characters, is cut between words"})
    signal.pause()
"""


@pytest.fixture
def terminal(tmp_path):
    """Run commands by tmux, whose server is of this test alone."""

    # pytest-xdist gives its processes a width, which would count before the terminal's.
    outside = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}

    def run(*words):
        done = subprocess.run(
            ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *map(str, words)],
            cwd=tmp_path, env={**outside, "TERM": "xterm"}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""

    yield run
    run("kill-server")


def picture(screen):
    """Return what tmux has captured, from the script's line on, without what differs from run to run."""
    lines = [line.rstrip() for line in screen.splitlines()]
    found = [i for i, line in enumerate(lines) if line.startswith("worker ")]
    text = "\n".join(lines[max(0, found[-1] - 1) :]) if found else ""
    return re.sub(r"(batches/s  )\d+ s", r"\1SOME s", text).rstrip() + "\n"


@pytest.mark.parametrize(("width", "height", "workers"), [(80, 24, 16), (120, 40, 5), (60, 14, 16)])
def test_a_terminal_shows_what_is_expected(terminal, write_script, tmp_path, width, height, workers):
    script = write_script(SCRIPT)
    wanted = PICTURES / f"{width}x{height}.txt"
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", workers, "--grace", 0, "--log-dir", "logs", script]
    terminal("new-session", "-d", "-x", width, "-y", height, shlex.join(map(str, command)))
    seen = [""]

    def is_there():
        seen[0] = picture(terminal("capture-pane", "-p"))
        return seen[0] == wanted.read_text()

    try:
        until(is_there, 90)
    except AssertionError:
        (tmp_path / wanted.name).write_text(seen[0])
        pytest.fail(f"instead of {wanted}:\n{seen[0]}")
    terminal("send-keys", "C-c")
    until(lambda: not terminal("list-sessions"))
