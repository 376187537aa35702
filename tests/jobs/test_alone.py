"""A job of one launched worker is the plain script, with a center for checkpoints and for workers that join late."""

import json

import numpy as np
import pytest
from alone_training import train
from scripts_here import script_path

pytestmark = pytest.mark.base


@pytest.mark.parametrize(
    "rule", [pytest.param("EASGD()", marks=pytest.mark.promise), "EASGD(alpha=0.5)", "ASGD()", "GoSGD(probability=1.0)"]
)
def test_the_only_worker_trains_as_if_it_were_alone(run_job, tmp_path, rule):
    run_job(script_path("alone_the_only_worker"), workers=1, args=[rule]).require_success()
    with np.load(tmp_path / "seen.npz") as seen:
        assert seen["own"].tobytes() == train().tobytes()
        np.testing.assert_allclose(seen["center"], train(), atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "late_value", "own_value", "center"),
    # The center is 5 when the late worker comes and adds 4; then the first worker adds 1 and synchronizes.
    [
        pytest.param("EASGD(alpha=0.5)", 7.0, 6.5, 6.5, marks=pytest.mark.promise),
        ("EASGD()", 9 - 0.45 * 4, 6 + 0.45 * 0.8, 6.8 - 0.45 * 0.8),
        ("ASGD()", 9.0, 10.0, 10.0),
        ("GoSGD(probability=1.0)", 9.0, (6 + 9) / 2, (6 + 9) / 2),  # it takes half of the weight, and gives it back
    ],
)
def test_with_a_late_worker_the_rule_takes_over(run_job, rule, late_value, own_value, center):
    run_job(
        script_path("alone_late_worker_of_a_rule"), args=[rule, json.dumps([late_value, own_value, center])], workers=1
    ).require_success()


@pytest.mark.parametrize("policy", ["raise", "skip", "restore"])
def test_alone_too_what_is_not_finite_stays_out_of_the_center(run_job, policy):
    run_job(script_path("alone_not_finite"), args=[policy], workers=1).require_success()


def test_a_worker_that_is_started_again_alone_goes_on_where_it_was(run_job):
    run_job(script_path("alone_a_worker_that_is_started_again_alone_goes"), workers=1, max_restarts=1).require_success()


def test_a_job_goes_on_with_another_number_of_workers(platoon, tmp_path):
    """One worker, then two that synchronize only, then one: each begins with the center, alone without a rule."""
    script = script_path("alone_a_job_goes_on_with_another_number_of_workers")
    for workers, first in (1, 0), (2, 5), (1, 5), (1, 10):
        options = ["--resume", "kept", "--checkpoint-every", 1000, "--log-dir", "logs"]
        platoon("launch", "-n", workers, *options, script, first).require()
