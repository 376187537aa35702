"""A job of one launched worker is the plain script, with a center for checkpoints and for workers that join late."""

import textwrap

import numpy as np
import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base

# w = 10, loss w^2, 200 steps of 0.01.
TRAINING = """
w = np.full(1000, 10.0, "float32")
w[1::2] = 1e-3
for step in range(200):
    w -= np.float32(0.02) * w
"""


def trained():
    space = {"np": np}
    exec(TRAINING, space)
    return space["w"]


@pytest.mark.parametrize("rule", ["EASGD()", "EASGD(0.5)", "ASGD()"])
def test_the_only_worker_trains_as_if_it_were_alone(run_job, tmp_path, rule):
    training = TRAINING.replace("for step", f"worker.init_shared_params([w], {rule})\nfor step") + (
        "    if step % 10 == 9:\n        worker.sync_params(synchronous=step < 100)\n"
    )
    run_job(
        "import sys\nimport numpy as np\nfrom platoon_base import ASGD, EASGD, connect\nworker = connect()\n"
        + training
        + textwrap.dedent(
            """
            assert worker.advanced.shares
            own = w.copy()
            w -= 1                        # a step that was not synchronized yet is in nobody's way
            with worker.center_params():
                np.savez(sys.argv[1] + "/seen.npz", own=own, center=w + 1)
            worker.copy_to_local()
            assert (w == own - 1).all()
            worker.release_shared_params()
            assert (w == own - 1).all()
            """
        ),
        workers=1,
    ).require_success()
    with np.load(tmp_path / "seen.npz") as seen:
        assert seen["own"].tobytes() == trained().tobytes()
        np.testing.assert_allclose(seen["center"], trained(), atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "late_value", "own_value", "center"),
    # The center is 5 when the late worker comes and adds 4; then the first worker adds 1 and synchronizes.
    [
        ("EASGD(0.5)", 7.0, 6.5, 6.5),
        ("EASGD()", 9 - 0.45 * 4, 6 + 0.45 * 0.8, 6.8 - 0.45 * 0.8),
        ("ASGD()", 9.0, 10.0, 10.0),
    ],
)
def test_with_a_late_worker_the_rule_takes_over(run_job, rule, late_value, own_value, center):
    run_job(
        f"""
        import os, subprocess, sys
        import numpy as np
        from platoon_base import ASGD, EASGD, connect

        late = "PLATOON_RANK" not in os.environ
        x = np.full(1000, 100.0 if late else 3.0)
        with connect() as worker:
            worker.init_shared_params([x], {rule})
            if late:
                assert (x == 5.0).all(), x
                x += 4
                worker.sync_params()
                np.testing.assert_allclose(x, {late_value})
            else:
                x += 2
                worker.sync_params()
                assert (x == 5.0).all()
                environment = {{k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}}
                subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
                x += 1
                worker.sync_params()
                np.testing.assert_allclose(x, {own_value})
                with worker.center_params():
                    np.testing.assert_allclose(x, {center})
                worker.copy_to_local()
                np.testing.assert_allclose(x, {center})
        """,
        workers=1,
    ).require_success()


@pytest.mark.parametrize("policy", ["raise", "skip", "restore"])
def test_alone_too_what_is_not_finite_stays_out_of_the_center(run_job, policy):
    run_job(
        f"""
        import os, subprocess, sys
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.errors import NonFiniteError

        late = "PLATOON_RANK" not in os.environ
        x = np.zeros(1000, "float32")
        with connect() as worker:
            worker.init_shared_params([x], EASGD(), on_nonfinite={policy!r})
            if late:
                assert x[3] == 0 and (np.delete(x, 3) == 1).all(), x
            else:
                x += 1
                x[3] = np.nan
                try:
                    worker.sync_params()
                except NonFiniteError as exc:
                    assert "element 3 of parameter 0" in str(exc)
                else:
                    assert {policy!r} != "raise"
                assert x[3] == 0 if {policy!r} == "restore" else np.isnan(x[3])
                assert (np.delete(x, 3) == 1).all()
                environment = {{k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}}
                subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        """,
        workers=1,
    ).require_success()


def test_a_worker_that_is_started_again_alone_goes_on_where_it_was(run_job):
    run_job(
        script_path("alone_a_worker_that_is_started_again_alone_goes"),
        workers=1,
        max_restarts=1,
    ).require_success()


def test_a_late_worker_that_is_refused_changes_nothing(run_job):
    run_job(
        script_path("alone_a_late_worker_that_is_refused_changes"),
        workers=1,
    ).require_success()


def test_a_job_goes_on_with_another_number_of_workers(platoon, tmp_path):
    """One worker, then two that synchronize only, then one: each begins with the center, alone without a rule."""
    script = script_path("alone_a_job_goes_on_with_another_number_of_workers")
    for workers, first in (1, 0), (2, 5), (1, 5), (1, 10):
        options = ["--resume", "kept", "--checkpoint-every", 1000, "--log-dir", "logs"]
        done = platoon("launch", "-n", workers, *options, script, first)
        logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
