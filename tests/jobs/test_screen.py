"""Pictures of a terminal in which a job runs, taken by tmux and compared with those in ``corpus/screens``."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_here import script_path
from watching import until

pytestmark = [
    pytest.mark.base,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux: apt-get install tmux"),
]

PICTURES = Path(__file__).parents[1] / "corpus" / "screens"
# No steps are counted, so no rate changes from run to run.
SCRIPT = script_path("screen_script")


@pytest.fixture
def terminal(tmp_path):
    """Run commands by tmux, whose server is of this test alone."""

    # pytest-xdist gives its processes a width, which would count before the terminal's.
    outside = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}

    def run(*words):
        done = subprocess.run(
            ["tmux", "-u", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *map(str, words)],
            cwd=tmp_path, env={**outside, "TERM": "xterm"}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""

    yield run
    run("kill-server")


def picture(screen):
    """Return what tmux has captured, from the script's line on, without what differs from run to run."""
    lines = [line.rstrip() for line in screen.splitlines()]
    found = [i for i, line in enumerate(lines) if line.startswith("worker ")]
    begin = max([i for i, line in enumerate(lines) if line == "a line of the script"], default=0)
    text = "\n".join(lines[begin:]) if found else ""
    return re.sub(r"(on cpu  )\d+ s", r"\1SOME s", text).rstrip() + "\n"


@pytest.mark.parametrize(
    ("width", "height", "workers", "locale"),
    [(80, 24, 16, "C.UTF-8"), (120, 40, 5, "C.UTF-8"), (60, 14, 16, "C.UTF-8"), (40, 24, 4, "C")],
)
def test_a_terminal_shows_what_is_expected(terminal, tmp_path, width, height, workers, locale):
    script = SCRIPT
    wanted = PICTURES / f"{width}x{height}.txt"
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", workers, "--grace", 0, "--log-dir", "logs", script]
    line = f"LC_ALL={locale} {shlex.join(map(str, command))}"
    terminal("new-session", "-d", "-x", width, "-y", height, line)
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


# As Keras prints with verbose=1 and 2: a line for each batch or epoch, some drawn over themselves.
PRINTING = """
    import time
    from pathlib import Path
    from platoon_base import connect

    worker = connect()
    i = 0
    while not Path("stop").exists():
        i += 1
        {prints}
        worker.report({{"measure": i}})
        time.sleep(0.02)  # or rank 0 would print as much as there is room for
"""


@pytest.mark.parametrize(
    "prints",
    [
        pytest.param('print(f"line {i}", flush=True)', marks=pytest.mark.promise),
        'print(f"line {i - 1}" + "\\b" * 9 + f"\\rline {i}", flush=True)',
        'print(f"\\rline {i}", flush=True) if i % 500 == 0 else print(f"\\rbar {i}", end="", flush=True)',
    ],
    ids=["lines", "lines drawn over", "a bar"],
)
def test_the_table_goes_on_below_what_rank_0_prints(terminal, write_script, tmp_path, prints):
    script = write_script(PRINTING.format(prints=prints))
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", 1, "--log-dir", "logs", script]
    terminal("new-session", "-d", "-x", 80, "-y", 24, shlex.join(map(str, command)))
    last = [0]

    def measured():
        """Take a picture; return the value that the table shows, if the script's newest line is right above it."""
        lines = terminal("capture-pane", "-p").rstrip().splitlines()
        found = [i for i, line in enumerate(lines) if re.search(r"  1 worker on cpu  ", line)]
        value = re.search(r"^measure (\d+)$", "\n".join(lines), re.MULTILINE)
        if not found or value is None or not re.fullmatch(r"(line|bar) \d+ *", lines[found[-1] - 1]):
            return 0
        last[0] = max(last[0], int(value[1]))
        return last[0]

    until(lambda: measured() > 0, 90)
    for _ in range(3):
        before = last[0]
        until(lambda before=before: measured() > before, 90)
    (tmp_path / "stop").touch()
    until(lambda: not terminal("list-sessions"), 90)
