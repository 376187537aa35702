"""A checkpoint that an earlier version has written is read, and a job goes on from it.

``tests/corpus/checkpoints`` has the checkpoint and the script that wrote it. In the version that did so, all modules of
`platoon_base` lay in one folder.
"""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from comparing import require_close

from platoon_base.checkpoints.files import CheckpointFolder, read_checkpoint
from platoon_base.sharding import Position

pytestmark = pytest.mark.base

CORPUS = Path(__file__).parents[1] / "corpus" / "checkpoints"
WRITTEN = CORPUS / "checkpoint-00000002.npz"
STEPS, MORE_STEPS = 6, 11  # done when it was written, and when the job that goes on ends


def train(steps, weights, bias):
    """Return the center after so many steps of both workers, which begin with its values."""
    center = [weights.copy(), bias.copy()]
    workers = [[weights.copy(), bias.copy()] for _ in range(2)]
    for _ in range(steps):
        for rank, params in enumerate(workers):
            params[0] += rank + 1
            params[1] -= rank + 1
            for x, c in zip(params, center):
                difference = 0.5 * (x - c)
                x -= difference
                c += difference
    return center


@pytest.fixture
def center():
    return train(STEPS, np.full((2, 3), 8, "float32"), np.arange(4.0))


def require_center(found, expected):
    assert [array.dtype for array in found] == ["float32", "float64"]
    require_close(found, expected, rtol=1e-6)


def test_all_of_it_is_read(center):
    about, found, states = read_checkpoint(WRITTEN)
    require_center(found, center)
    assert states == []
    assert (about.format, about.seed, about.size, about.bound) == (1, 11, 2, False)
    assert about.seconds == pytest.approx(2.1, abs=0.1)
    assert (about.rule, about.settings) == ("EASGD", "EASGD(alpha=0.5)")
    assert [(spec.name, spec.shape, spec.dtype) for spec in about.layout.specs] == [
        ("parameter 0", (2, 3), "float32"),
        ("parameter 1", (4,), "float64"),
    ]
    assert about.positions == {rank: Position(epoch=2, epoch_steps=2, steps=STEPS) for rank in range(2)}
    assert about.reported == {"loss": 0.25, "errors": 3, "note": "é"}
    for rank in range(2):
        kept = {name: msgspec.msgpack.decode(value) for name, value in about.kept[rank].items()}
        assert kept == {"noise": [rank, STEPS], "schedule": {"rate": 0.5 / STEPS, "name": "é"}}


def test_it_is_the_newest_of_its_folder(tmp_path):
    shutil.copy(WRITTEN, tmp_path)
    folder = CheckpointFolder(tmp_path)
    try:
        assert folder.newest() == (tmp_path / WRITTEN.name, read_checkpoint(WRITTEN).about)
    finally:
        folder.close()


@pytest.mark.slow
@pytest.mark.promise
def test_a_job_goes_on_from_it(platoon, center, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    shutil.copy(WRITTEN, folder)
    options = ["-n", 2, "-D", "cpu", "--log-dir", "logs", "--checkpoint-every", 1000, "--resume", folder]
    done = platoon("launch", *options, CORPUS / "train.py", MORE_STEPS).require()
    for rank, log in enumerate(done.logs):
        began = json.loads(log.splitlines()[0])
        assert began["at"] == [2, 2, STEPS]
        assert began["kept"] == [[rank, STEPS], {"rate": 0.5 / STEPS, "name": "é"}]
        assert began["seed"] == 11
        require_center([np.array(began["weights"], "float32"), np.array(began["bias"])], center)
    about, found, _ = read_checkpoint(max(folder.glob("checkpoint-*.npz")))
    require_center(found, train(MORE_STEPS - STEPS, *center))
    assert about.positions == {rank: Position(epoch=3, epoch_steps=3, steps=MORE_STEPS) for rank in range(2)}
    assert about.seconds > read_checkpoint(WRITTEN).about.seconds
