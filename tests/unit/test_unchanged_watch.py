"""Parameters that never change between synchronizations are named, once."""

import numpy as np
import pytest

from platoon_base.rules import ASGD, AveragedEASGD

pytestmark = pytest.mark.base


@pytest.fixture
def shared(job_of_one):
    params = [np.ones((3, 4), "float32"), np.zeros(5)]
    job_of_one.init_shared_params(params, ASGD())
    return job_of_one, params


def test_arrays_that_the_training_replaces_are_named_once(shared, caplog):
    worker, shared_params = shared
    params = list(shared_params)
    for _ in range(10):
        params[0] = params[0] - 0.1
        params[1] += 0.1
        worker.sync_params()
    (record,) = caplog.records
    assert "parameter 0 did not change in 3 synchronizations" in record.getMessage()
    assert "w[...] = new" in record.getMessage()
    assert (shared_params[0] == 1).all()


@pytest.mark.parametrize("element", [(0, 0), (2, 3)])
def test_a_single_element_that_changes_is_enough(shared, caplog, element):
    worker, (w, b) = shared
    for step in range(10):
        worker.sync_params()
        worker.sync_params()  # as at the end of an epoch
        if step == 0:
            b[-1] += 1
        w[element] += 1
    assert not caplog.records


def test_a_late_change_is_one(job_of_one, caplog):
    """What the center brings is no change, and what the training changes is, by any rule."""
    w = np.ones(10)
    job_of_one.init_shared_params([w], ASGD())
    job_of_one.sync_params()
    job_of_one.sync_params()
    w += 1
    for _ in range(5):
        job_of_one.sync_params()
    assert not caplog.records


def test_scalars_and_empty_arrays_are_taken(job_of_one, caplog):
    job_of_one.init_shared_params([np.array(1.0), np.ones((0, 2)), np.ones(2)], ASGD())
    for _ in range(5):
        job_of_one.sync_params()
    (record,) = caplog.records
    assert "parameter 0, parameter 2 did not change" in record.getMessage()  # there is nothing to learn of an empty one


def test_gradients_may_be_accumulated_over_some_mini_batches(job_of_one, caplog):
    """A rule that synchronizes at each of them does not take a few for the training of other arrays."""
    w = np.ones(3)
    job_of_one.init_shared_params([w], AveragedEASGD(), moments=[])
    for step in range(64):
        if step % 16 == 15:
            w += 1
        job_of_one.sync_params()
    assert not caplog.records
    job_of_one.release_shared_params()
    job_of_one.init_shared_params([w], AveragedEASGD(), moments=[])
    for _ in range(40):
        job_of_one.sync_params()
    (record,) = caplog.records
    assert "did not change in 30 synchronizations" in record.getMessage()
