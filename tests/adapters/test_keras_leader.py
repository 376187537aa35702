"""Rank 0 fails in a fit with a rule: another worker writes, prints and reports on, and all rows are validated."""

import csv

import pytest
from keras_here import keras, on_torch
from scripts_here import script_path

from platoon_plugins.keras.standby import stand_by

pytestmark = pytest.mark.keras


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param("killed", marks=on_torch(pytest.mark.promise)), "raises"])
def test_another_worker_writes_and_reports_on(run_keras, tmp_path, end):
    outcome = run_keras(script_path("keras_leader_fit"), args=[end])
    reported = outcome.reported
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4"], outcome.logs
    assert (tmp_path / "notes").read_text().splitlines() == [
        "0 begins", "0 ends 0", "0 ends 1", "1 begins", "1 ends 2", "1 ends 3", "1 ends 4",
    ]  # fmt: skip
    assert reported["val_loss"] == pytest.approx(float(rows[-1]["val_loss"]), abs=1e-5)
    assert reported["leads"]
    assert "worker 1 was the leader" in outcome.result.lost_leader
    assert "val_loss: " in outcome.logs[1]  # the progress bar, and what callbacks print
    assert "ranks [0] are lost: from epoch 4 on" in outcome.logs[1]
    if reported["parts of the data"] == "1 of 2 trained, all validated":
        assert reported["last"] == pytest.approx(reported["alone"], abs=1e-5)
        assert reported["kept"] == pytest.approx(reported["best"], abs=1e-5)
    else:  # the values are of other rows than those of all
        assert reported["parts of the data"] == "1 of 2 trained, 1 of 2 validated"
        assert reported["keras"] == 2


@pytest.mark.promise
def test_a_placeholder_knows_the_best_value_of_the_leader():
    options = {"monitor": "loss", "mode": "min", "save_best_only": True}
    placeholder = stand_by(callback := keras.callbacks.ModelCheckpoint("best.keras", **options))
    placeholder.set_model(keras.Sequential())
    for loss in (3.0, 1.0, 2.0):
        placeholder.on_epoch_end(0, {"loss": loss})
        placeholder.follow()
    assert callback.best == 1.0


@pytest.mark.slow
def test_a_best_value_is_not_forgotten_when_another_worker_takes_over(run_keras):
    """The learning rate is far too large from the third epoch on: what was saved before stays."""
    outcome = run_keras(script_path("keras_leader_fit"), args=["killed", "diverges"])
    assert outcome.reported["kept"] == pytest.approx(outcome.reported["best"], abs=1e-5), outcome.logs
