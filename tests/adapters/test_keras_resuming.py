"""Fits of a job that is resumed from a checkpoint begin at its epoch, on every back end that is installed."""

import math

import pytest

from platoon_base.checkpoints.files import CheckpointFolder
from platoon_base.checkpoints.writer import Saving

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

FITS = """
    averaged, epochs, expected, again = sys.argv[2:]
    x, y = data(32)
    model = dense(optimizer=DistributedOptimizer("sgd") if int(averaged) else "sgd")

    def epochs_of_fit(**options):
        watch = Watch(epoch_end=lambda callback, epoch, logs: rank == 1 and epoch == 3 and stop(callback))
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute([watch]), **options)
        return watch.epochs

    found = epochs_of_fit(epochs=int(epochs))
    assert found == json.loads(expected), found
    # Each later fit is a training of its own.
    assert epochs_of_fit(epochs=2) == json.loads(again)
    weights = everyones(flat(model.get_weights()))
    assert (weights[0] == weights[1]).all()
"""


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


def test_the_first_fit_goes_on_at_its_epoch_and_trains_no_more_once_it_is_over(fits):
    """The checkpoint has the first center of the job: the second fit is made anew each time."""
    fits(2, [0, 1])
    fits(3, [2])
    (*_, log) = fits(3, [])
    assert "this fit trains no more: 3 epochs were over when the job was resumed, and those were all" in log
    fits(9, [3])  # where its callback stops it
    (*_, log) = fits(9, [])
    assert "4 epochs were over when the job was resumed, and its callbacks had stopped it" in log


def test_a_fit_without_a_center_says_that_it_begins_anew(fits):
    fits(2, [0, 1])
    (*_, log) = fits(2, [0, 1], averaged=True)
    assert "this job was resumed at epoch 2, and its fit begins at epoch 1 with new weights" in log
