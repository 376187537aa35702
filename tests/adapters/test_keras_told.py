"""What the launcher learns of a fit: epoch, batches, goals, loss and validation, with no line in the script."""

import math

import pytest

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(("workers", "options"), [(1, ""), (2, ""), (2, "sync")])
def test_a_fit_tells_its_epochs_its_batches_and_its_logs(run_keras, workers, options):
    snapshots = []
    outcome = run_keras(
        """
        optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1)) if "sync" in sys.argv else "sgd"
        model = dense(optimizer=optimizer)
        x, y = data(48 * size)
        history = model.fit(*shard(x, y), batch_size=8, epochs=3, initial_epoch=1, verbose=0,
                            validation_data=shard(x, y), callbacks=distribute([]))
        worker.report({f"loss {rank}": float(history.history["loss"][-1])})
        """,
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
