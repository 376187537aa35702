"""What the launcher learns of a fit: epoch, batches, goals, loss and validation, with no line in the script."""

import math

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(("workers", "options"), [(1, ""), (2, ""), (2, "sync")])
def test_a_fit_tells_its_epochs_its_batches_and_its_logs(run_keras, workers, options):
    snapshots = []
    outcome = run_keras(
        script_path("keras_told_a_fit_tells_its_epochs_its_batches"),
        workers,
        args=[options],
        observer=snapshots.append,
    ).require_success()
    for rank in range(workers):
        progress = snapshots[-1].progress[rank]
        assert (progress.epoch, progress.last_epoch, progress.steps) == (3, 3, 12)
        assert (progress.epoch_steps, progress.steps_before_epoch) == (6, 6)
        assert progress.loss == pytest.approx(outcome.reported[f"loss {rank}"], rel=1e-5)
    assert math.isfinite(outcome.reported["val_loss"])
    assert outcome.reported["loss"] == pytest.approx(progress.loss)
