"""Outer-step rules in jobs of real processes: rounds against NumPy, deaths, late joiners."""

import numpy as np
import pytest
from learned_progress import progress
from scripts_here import script_path

pytestmark = pytest.mark.base


def mean_progress(step, *ranks):
    return np.mean([progress(rank, step, (600_000,), "float64") for rank in ranks], axis=0)


# What worker 2 of three does in its second round; the others make four.
ENDS = ["it leaves before", "it dies before it meets the others", "it dies in the midst of the step"]


@pytest.mark.parametrize("end", [*ENDS[:2], pytest.param(ENDS[2], marks=pytest.mark.promise)])
def test_the_others_go_on_without_one_that_ends(run_job, tmp_path, end):
    """Its progress counts in the round in which it died, since it had given all of it; the workers left are the N."""
    outcome = run_job(script_path("outer_rules_one_ends"), args=[end], workers=3)
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    c, m = np.zeros(600_000), np.zeros(600_000)
    for step in range(4):
        d = mean_progress(step, *([0, 1, 2] if step == 0 or (step == 1 and "leaves" not in end) else [0, 1]))
        m = 0.8 * m + d
        c = c + 0.7 * (d + 0.8 * m)
    for rank in (0, 1):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npz")["arr_0"], c, rtol=0, atol=1e-5)


@pytest.mark.parametrize("choice", ["raise", "skip", "restore"])
def test_what_is_not_finite_stays_out_and_keeps_nobody_waiting(run_job, choice):
    outcome = run_job(script_path("outer_rules_not_finite"), args=[choice]).require_success()
    assert ("raised" in outcome.reported) == (choice == "raise")
