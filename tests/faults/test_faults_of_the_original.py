"""What made the original Platoon hang, leak, mix up models or report success, each with real processes: no harm here.

The rows are those of docs/reliability/original.md; some are tested elsewhere, as it says there.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_here import script_path

from platoon_base import EASGD
from platoon_base.job import host_job

pytestmark = pytest.mark.base

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user or enter another network")


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", 137, marks=pytest.mark.promise),
        ("os._exit(0)", 0),
        ("raise RuntimeError('on purpose')", 1),
    ],
)
def test_the_lock_is_freed_however_its_holder_ends(run_job, ending, status):
    outcome = run_job(
        f"""
        import os, signal
        from platoon_base import connect
        worker = connect()
        if worker.global_rank == 0:
            worker.lock()
        worker.barrier("the lock is taken")
        if worker.global_rank == 0:
            {ending}
        worker.lock(timeout_s=20)
        worker.unlock()
        """,
        workers=3,
    )
    assert [e.status for e in sorted(outcome.result.exits)] == [status, 0, 0], outcome.logs


@pytest.mark.promise
def test_a_killed_worker_is_no_success_even_if_another_had_ended_well(run_job):
    outcome = run_job(script_path("faults_of_the_original_a_killed_worker_is_no_success_even"))
    assert outcome.result.status == 137, outcome.result


@pytest.mark.promise
def test_ten_thousand_bad_messages_change_no_result(run_job, tmp_path):
    """Noise, cut-off, replayed and contradictory requests, too large ones, while another worker trains."""
    script = script_path("faults_of_the_original_ten_thousand_bad_messages_change_no_result")
    run_job(script).require_success()
    outcome = run_job(script, args=["with bad messages"]).require_success()
    assert outcome.result.stopped_by == "end of script"
    assert outcome.reported == {}
    first, second = ((tmp_path / f"center{n}.npy").read_bytes() for n in (2, 3))
    assert first == second


@as_root
@pytest.mark.promise
def test_another_user_cannot_reach_a_job(run_command):
    """Neither its socket nor its memory, and so can neither join nor make segments."""
    look = script_path("faults_of_the_original_another_user_cannot_reach_a_job")
    with host_job(1) as job:
        files = job.files
        done = run_command(sys.executable, look, files.folder, f"/dev/shm{files.job_state}").require()
    assert done.stdout.startswith("refused"), done.stdout


TWO_JOBS = script_path("faults_of_the_original_two_jobs")


@pytest.mark.parametrize(
    "apart",
    [pytest.param([], marks=pytest.mark.promise), pytest.param(["unshare", "-n"], marks=as_root)],
    ids=["", "another network"],
)
def test_two_jobs_at_once_keep_out_of_each_other(tmp_path, apart):
    if apart and not shutil.which("unshare"):
        pytest.skip("needs unshare, of util-linux")
    script = TWO_JOBS
    launch = [sys.executable, "-m", "platoon_base", "launch", "-n", "2", "--log-dir"]
    jobs = [
        subprocess.Popen([*where, *launch, f"logs{step}", script, str(step)], cwd=tmp_path, stdout=subprocess.PIPE)
        for where, step in (([], 1), (apart, 3))
    ]
    outputs = [job.communicate(timeout=120)[0].decode() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs


@pytest.mark.promise
def test_arrays_of_as_many_bytes_and_another_shape_are_not_combined(run_job):
    run_job(script_path("faults_of_the_original_arrays_of_as_many_bytes_and_another_shape")).require_success()


@pytest.mark.promise
def test_a_rank_that_ends_earlier_leaves_no_other_waiting(run_job):
    outcome = run_job(script_path("faults_of_the_original_a_rank_that_ends_earlier_leaves")).require_success()
    assert outcome.result.seconds < 60


@pytest.mark.promise
def test_workers_on_one_device_have_logs_and_ranks_of_their_own(platoon, write_script, tmp_path):
    script = write_script(
        """
        from platoon_base import connect
        worker = connect()
        print("rank", worker.global_rank, worker.local_rank, "of", worker.local_size)
        """
    )
    assert platoon("launch", "-D", "cpu", "cpu", "--log-dir", "logs", script).returncode == 0
    for rank in range(2):
        assert f"rank {rank} {rank} of 2" in (tmp_path / "logs" / f"rank{rank}.log").read_text()


@pytest.mark.promise
def test_a_rule_cannot_be_changed_without_effect():
    with pytest.raises(AttributeError):
        EASGD(0.5).alpha = 0.1


@pytest.mark.promise
def test_nothing_is_left_without_close(run_job):
    """The fixture `nothing_left_behind` looks for what is left."""
    outcome = run_job(script_path("faults_of_the_original_nothing_is_left_without_close"))
    assert outcome.result.status == 0


@pytest.mark.promise
def test_the_tests_that_the_docs_name_exist():
    tests = Path(__file__).parents[1]
    pages = sorted((tests.parent / "docs" / "reliability").glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    defined = "".join(path.read_text() for path in tests.glob("*/test_*.py"))
    named = set(re.findall(r"`(?:\w+\.py::)?(test_\w+)`", text))
    assert len(named) > 80
    assert [name for name in sorted(named) if f"def {name}(" not in defined] == []
    files = set(re.findall(r"`(test_\w+\.py)`", text))
    assert len(files) > 60
    assert [name for name in sorted(files) if not list(tests.glob(f"*/{name}"))] == []
