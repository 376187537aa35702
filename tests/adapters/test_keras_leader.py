"""Rank 0 fails in a fit with a rule: another worker writes, prints and reports on, and all rows are validated."""

import csv

import pytest

pytestmark = pytest.mark.keras

# It ends in its callbacks, before those that write have come to the epoch.
FIT = """
import signal
x, y = data(61)
xv, yv = data(23, seed=1)

class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if rank == 0 and epoch == 2:
            {end}

class Writer(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.note("begins")

    def on_epoch_end(self, epoch, logs=None):
        self.note(f"ends {{epoch}}")

    def note(self, text):
        with open(os.path.join(sys.argv[1], "notes"), "a") as file:
            file.write(f"{{rank}} {{text}}\\n")

from platoon_plugins.keras import LEADER_ONLY
path = os.path.join(sys.argv[1], "best.weights.h5")
best = keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True, verbose=1)
watch = Watch()
model = dense(optimizer=keras.optimizers.SGD(0.05))
callbacks = [Ends(), watch, Writer(), best, keras.callbacks.CSVLogger(os.path.join(sys.argv[1], "log.csv"))]
history = model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=5, batch_size=5, verbose=2,
                    callbacks=distribute(callbacks, leader_only=(*LEADER_ONLY, Writer), every_n_batches=2))
values = [float(value) for value in history.history["val_loss"]]
alone = model.evaluate(xv, yv, verbose=0)[0]
model.load_weights(path)
kept = model.evaluate(xv, yv, verbose=0)[0]
worker.report({{"last": values[-1], "alone": float(alone), "best": min(values), "kept": float(kept),
               "leads": int(worker.is_leader), "keras": 2 if KERAS_2 else 3}})
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "raise OSError('disk full')"])
def test_another_worker_writes_and_reports_on(run_keras, tmp_path, end):
    outcome = run_keras(FIT.format(end=end), workers=2)
    reported = outcome.reported
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4"], outcome.logs
    assert (tmp_path / "notes").read_text().splitlines() == [
        "0 begins", "0 ends 0", "0 ends 1", "1 begins", "1 ends 2", "1 ends 3", "1 ends 4",
    ]  # fmt: skip
    assert reported["val_loss"] == pytest.approx(float(rows[-1]["val_loss"]), abs=1e-5)
    assert reported["leads"]
    assert "Worker 1 was the leader" in outcome.result.lost_leader
    assert "val_loss: " in outcome.logs[1]  # the progress bar, and what callbacks print
    assert "ranks [0] are gone: from epoch 4 on" in outcome.logs[1]
    if reported["parts of the data"] == "1 of 2 trained, all validated":
        assert reported["last"] == pytest.approx(reported["alone"], abs=1e-5)
        assert reported["kept"] == pytest.approx(reported["best"], abs=1e-5)
    else:  # the values are of other rows than those of all
        assert reported["parts of the data"] == "1 of 2 trained, 1 of 2 validated"
        assert reported["keras"] == 2


@pytest.mark.slow
def test_a_best_value_is_not_forgotten_when_another_worker_takes_over(run_keras):
    """The learning rate is far too large from the third epoch on: what was saved before stays."""
    fit = FIT.format(end="os.kill(os.getpid(), signal.SIGKILL)")
    worse = "keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 if epoch < 2 else 30.0)"
    outcome = run_keras(fit.replace("callbacks = [", f"callbacks = [{worse}, "), workers=2)
    assert outcome.reported["kept"] == pytest.approx(outcome.reported["best"], abs=1e-5), outcome.logs
