"""Warnings of this package reach the user's terminal once, with the workers that gave them."""

import re
import sys

import pytest

from platoon_base.cli.worker_output import LogLines, NewLine, WorkerWarnings

pytestmark = pytest.mark.base

BOTH = "both workers say this, in a sentence that is longer than what is repeated of it, and it ends here"
WARNING = """
    import logging, sys, warnings
    from platoon_base import connect
    from platoon_base.errors import PlatoonWarning
    from platoon_base.worker import warn_once

    worker = connect()
    worker.barrier()
    if worker.global_rank == 1:
        warnings.warn("by Python alone", PlatoonWarning)
        logging.getLogger("platoon_plugins.some").warning("rank 1: by the log alone")
    warnings.simplefilter("ignore")
    for _ in range(2):
        warn_once({both!r})
    worker.barrier()
"""


@pytest.mark.parametrize("tee", [pytest.param("0", marks=pytest.mark.promise), "all", "none"])
def test_a_job_shows_each_warning_once_whatever_output_is_shown(platoon, write_script, tee):
    done = platoon("launch", "-n", 2, "--tee", tee, write_script(WARNING.format(both=BOTH))).require()
    assert [line for line in done.stdout.splitlines() if "alone" in line] == [
        "WARNING, worker 1: by Python alone",
        "WARNING, worker 1: by the log alone",
    ]
    assert done.stdout.count(BOTH) == 1
    # Where one of them is a second late, it has a line of its own.
    assert re.search(rf"WARNING, workers 0, 1: {BOTH}\n|WARNING, worker [01] too: {BOTH[:60]}\.\.\.\n", done.stdout)
    assert "PlatoonWarning" not in done.stdout + done.stderr


@pytest.mark.parametrize("run", [[], ["-m", "platoon_base", "run"]], ids=["python", "platoon run"])
def test_a_process_alone_shows_a_warning_once(run_command, run, write_script):
    text = "from platoon_base.worker import warn_once\nwarn_once('beware')\nwarn_once('beware')\n"
    done = run_command(sys.executable, *run, write_script(text)).require()
    assert (done.stdout + done.stderr).count(": beware") == 1, done.stderr


BAR = "".join(f"\r{i}/10 going" for i in range(1000)) + "\r10/10 done"


def test_lines_of_logs_are_told_apart(tmp_path):
    path = tmp_path / "rank0.log"
    lines = LogLines([path], whole=[0])
    path.write_text(
        "2026-11-24 16:12:47,123 rank 0 WARNING platoon_base.system.warn: the text: of it\n"
        "2026-11-24 16:12:47,123 rank 0 INFO platoon_base.worker.handle: for the record\n"
        f"{BAR}2026-11-24 16:12:47,123 rank 0 WARNING platoon_base.some: behind a bar\n"
        f"{BAR}2026-11-24 16:12:47,123 rank 0 INFO platoon_base.some: for the record\n"
        "/a/script.py:7: PlatoonWarning: a child's\n"
        "  warnings.warn('a child's')\n"
        "  the script's own line\n"
        "platoon_base.errors.PlatoonWarning: of a traceback\n"
        "/a/script.py:8: UserWarning: not ours\n"
    )
    assert list(lines.new(last=True)) == [
        NewLine(0, "the text: of it", True),
        NewLine(0, "10/10 done", False),
        NewLine(0, "behind a bar", True),
        NewLine(0, "10/10 done", False),
        NewLine(0, "a child's", True),
        NewLine(0, "  the script's own line", False),
        NewLine(0, "platoon_base.errors.PlatoonWarning: of a traceback", False),
        NewLine(0, "/a/script.py:8: UserWarning: not ours", False),
    ]


def test_the_rest_of_what_is_shown_otherwise_is_left_out_though_its_begin_was_read(tmp_path):
    """A traceback that is still being written, which the launcher shows by itself."""
    path = tmp_path / "rank0.log"
    lines = LogLines([path], whole=[0])
    path.write_text("one\nthe begin\n")
    assert [line.text for line in lines.new()] == ["one", "the begin"]
    lines.skip(0, len("one\n"), len("one\nthe begin\nthe end\n"))
    with path.open("a") as file:
        file.write("the end\ntwo\n")
    assert [line.text for line in lines.new()] == ["two"]


def test_workers_that_say_the_same_are_named_together():
    found = WorkerWarnings(4)

    def give(rank, text, now):
        found.take(NewLine(rank, text, True), now)

    give(0, "rank 0: w stands still", 10.0)
    give(2, "rank 2: w stands still", 10.5)
    assert list(found.new(10.9)) == [], "the others may say it too"
    assert list(found.new(11.0)) == ["WARNING, workers 0, 2: w stands still"]
    give(0, "rank 0: w stands still", 12.0)
    assert list(found.new(20.0)) == [], "it has been said"
    give(1, "rank 1: w stands still", 20.0)
    assert list(found.new(20.5)) == [], "the last one may say it too"
    give(3, "rank 3: w stands still", 20.5)
    assert list(found.new(20.5)) == ["WARNING, workers 1, 3 too: w stands still..."], "nobody is left to wait for"
    give(4, "the server is slow", 30.0)
    assert list(found.new(30.0, last=True)) == ["WARNING, data server: the server is slow"]


def test_a_worker_that_warns_all_the_time_does_not_fill_the_screen():
    found = WorkerWarnings(1)
    for step in range(100):
        found.take(NewLine(0, f"step {step}: too large", True), 0.0)
    assert len(list(found.new(5.0))) == 5
    for length in range(1100):
        found.take(NewLine(0, "x" * length, True), 10.0)
    assert 900 < len(list(found.new(15.0))) < 1000, "texts that are all different have an end too"
