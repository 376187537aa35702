"""Fits of a job that is resumed from a checkpoint begin at its epoch, on every back end that is installed."""

import math
from unittest.mock import Mock

import pytest
from keras_here import on_keras_3
from scripts_here import script_path

from platoon_base.checkpoints.files import CheckpointFolder
from platoon_base.checkpoints.writer import Saving
from platoon_plugins.keras.resuming import Resumption, agree_to_resume

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

FITS = script_path("keras_resuming_fits")


@pytest.fixture
def fits(run_keras, tmp_path):
    """Run a job that resumes the one before, and return the logs of its workers."""

    def run(epochs, expected, averaged=False):
        folder = CheckpointFolder(tmp_path / "kept")
        try:
            arguments = [str(int(averaged)), str(epochs), str(expected), "[0, 1]"]
            done = run_keras(FITS, args=arguments, saving=Saving(folder, math.inf), resume=folder.newest())
            return done.require_success().logs
        finally:
            folder.close()

    return run


@on_keras_3(pytest.mark.promise)
def test_the_first_fit_goes_on_at_its_epoch_and_trains_no_more_once_it_is_over(fits):
    """The checkpoint has the first center of the job: the second fit is made anew each time, as one without center."""
    fits(9, [0, 1])  # where its callback stops it
    (*_, log) = fits(9, [])
    assert "this fit trains no more: 2 epochs were done when the job was resumed, and its callbacks had stopped" in log
    fits(3, [2])
    (*_, log) = fits(2, [0, 1], averaged=True)
    assert "this job was resumed at epoch 3, and its fit starts at epoch 1 with new weights" in log


@pytest.mark.promise
def test_the_fit_goes_on_where_the_slowest_worker_was():
    worker = Mock(take_kept=lambda name: [4, 0], gather=lambda mine, name: [mine, [3, 0], None])
    assert agree_to_resume(worker) == Resumption(3)


@pytest.mark.parametrize(
    ("resumption", "epochs", "given", "first"),
    [
        (Resumption(4), 9, 0, 4),
        (Resumption(4), 9, 6, 6),
        (Resumption(4), None, 0, 4),
        (Resumption(4), 4, 0, 4),
        (Resumption(4), 3, 0, 3),
        (Resumption(4, stopped_of=9), 9, 0, 9),
        (Resumption(4, stopped_of=9), 12, 0, 4),
    ],
)
def test_the_first_epoch_of_a_fit(resumption, epochs, given, first, monkeypatch):
    said = []
    monkeypatch.setattr("platoon_plugins.keras.resuming.warn_once", said.append)
    assert resumption.first_epoch(epochs, given) == first
    assert bool(said) == (first == epochs)
