"""`AveragedEASGD` in jobs: its average beside `update_center`, half precision, and trainings one after the other."""

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base


def test_the_average_follows_what_workers_do_to_the_center(run_job):
    """In the second training a goes half of the way to c in each worker's first synchronization: n = 1, k = 16, N = 2.

    c becomes 0.45 and then 0.6975.
    """
    outcome = run_job(script_path("worker_averaged_center"), 2).require_success()
    for rank in range(2):
        assert "would stop moving" in outcome.reported[f"half {rank}"]
        assert outcome.reported[f"average {rank}"] == pytest.approx(0.5 * 0.45 * 0.5 + 0.5 * 0.6975, rel=1e-12)
