"""What workers know of each other: real jobs, in which ranks leave, die, or wait elsewhere."""

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base


def test_an_all_reduce_and_a_barrier_that_wait_for_each_other_end(run_job):
    outcome = run_job(
        script_path("liveness_an_all_reduce_and_a_barrier_that_wait"),
    )
    assert "rank 1 waits in 'barrier epoch'" in outcome.reported["said"], outcome.logs


def test_a_late_joiner_is_told_that_groups_are_fixed(run_job, write_script):
    late = write_script(
        """
        import numpy as np
        from platoon_base import connect
        from platoon_base.errors import ConfigurationError

        with connect() as worker:
            try:
                worker.all_reduce(np.ones(3))
            except ConfigurationError as exc:
                worker.report({"said": str(exc)})
        """,
        "late.py",
    )
    outcome = run_job(
        script_path("liveness_a_late_joiner_is_told_that_groups_are_fixed"),
        args=[str(late)],
    ).require_success()
    assert "joined late" in outcome.reported["said"]


def test_a_group_that_cannot_be_made_fails_on_every_rank(run_job):
    outcome = run_job(script_path("liveness_a_group_that_cannot_be_made_fails_on_every")).require_success()
    assert set(outcome.reported) == {"rank 0", "rank 1"}
    assert all("no room" in said for said in outcome.reported.values())


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise RuntimeError('oops')",
        "connect().close(); sys.exit(0)",
        "sys.exit(3)",
    ],
)
def test_a_group_without_one_of_the_launched_workers_is_not_formed(run_job, end):
    """What fewer combine is not what the script means."""
    outcome = run_job(
        f"""
        import os, signal, sys
        import numpy as np
        from platoon_base import connect
        from platoon_base.errors import WorkerLostError

        if os.environ["PLATOON_RANK"] == "2":
            {end}
        with connect() as worker:
            try:
                found = worker.all_reduce(np.ones(3), "mean")
            except WorkerLostError as exc:
                worker.report({{f"rank {{worker.global_rank}}": str(exc)}})
        """,
        workers=3,
    )
    assert set(outcome.reported) == {"rank 0", "rank 1"}, outcome.logs
    for said in outcome.reported.values():
        assert "cannot form a group of all 3 workers: rank 2" in said


def test_a_late_joiner_that_has_met_the_others_does_not_keep_them_from_forming_a_group(run_job, write_script):
    late = write_script(
        """
        import sys
        from platoon_base import connect

        with connect() as worker:
            worker.advanced.sum_pairs("n", {})  # from now on the others wait for it in such calls
            sys.stdin.read()
        """,
        "late.py",
    )
    run_job(
        script_path("liveness_a_late_joiner_that_has_met_the_others_does"),
        args=[str(late)],
    ).require_success()


def test_a_forked_child_is_refused(run_job):
    run_job(script_path("liveness_a_forked_child_is_refused")).require_success()
