"""The begin of a training on all workers: in which order its steps come, and what each of them gives the workers."""

import numpy as np
import pytest
from plain_variable import Variable
from scripts_here import script_path

from platoon_base import EASGD
from platoon_base.errors import ConfigurationError
from platoon_base.worker import start_training

pytestmark = pytest.mark.base


def test_alone_a_training_begins_with_its_own_values(solo_worker):
    weight, shared, met = Variable("w", [1.0, 2.0]), np.ones(3), []
    options = {"rule": EASGD(), "parameters": [shared], "once_met": met.append}
    assert start_training(solo_worker, "fit", "fit", values=[weight], **options) == [0]
    assert met == [[0]]
    np.testing.assert_array_equal(weight.value, [1.0, 2.0])
    solo_worker.sync_params()
    np.testing.assert_array_equal(shared, 1.0)


def test_a_vote_of_the_training_before_does_not_count(solo_worker):
    for _ in range(2):
        start_training(solo_worker, "fit", "fit")
        assert solo_worker.advanced.stop_votes.voters() == set()
        solo_worker.advanced.stop_votes.cast()
        assert solo_worker.advanced.stop_votes.voters() == {0}


def test_values_that_workers_cannot_exchange_are_refused(solo_worker):
    with pytest.raises(ConfigurationError, match="got w of dtype object, which cannot be copied"):
        start_training(solo_worker, "fit", "fit", values=[Variable("w", [object()])])


def test_all_begin_with_the_values_of_the_first(run_job):
    """Bit by bit, counters too; what is shared comes from the center, and nobody trains before all have it."""
    run_job(script_path("training_start_all_begin_with_the_values_of_the_first"), workers=3).require_success()


def test_those_that_are_left_begin_without_the_one_that_is_gone(run_job):
    run_job(script_path("training_start_those_that_are_left_begin"), workers=3).require_success()


def test_other_values_and_purposes_are_refused_everywhere_and_nothing_is_changed(run_job):
    told = run_job(script_path("training_start_other_values_and_purposes_are_refused")).require_success().reported
    assert "got w float32[3] as parameter 0, and worker 1's is w float32[4]" in told["length 0"]
    assert "worker 0's is w float32[3]" in told["length 1"]
    assert "got policy=0, and worker 1 has policy=1" in told["purpose 0"]
    assert "got policy=1, and worker 0 has policy=0" in told["purpose 1"]
    part = "f(... x=1, x=1, x=1, x=1, x=1, policy={}, y=2, y=2, y=2, y=2, y=2, y=2, ..."
    assert f"got {part.format(0)}, and worker 1 has {part.format(1)}, so their" in told["long purpose 0"]


@pytest.mark.promise
def test_a_worker_with_other_arguments_of_the_rule_or_another_mode_is_refused(run_job):
    told = run_job(script_path("training_start_other_rules_are_refused")).require_success().reported
    assert "got DiLoCo with outer_lr=0.1 on rank 1, and with outer_lr=0.7 on rank 0" in told["argument"]
    assert "got DiLoCo with momentum=0.5 on rank 1, and with momentum=0.8 on rank 0" in told["environment"]
    assert "differs between rank 0 and rank 1: rank 1 has a rule, rank 0 averaged gradients" in told["mode"]


def test_a_late_worker_is_refused_before_it_meets_anybody(run_job):
    script = script_path("training_start_a_late_worker_is_refused_before_it_meets")
    assert run_job(script, workers=1).require_success().reported["late"] == (
        "this worker joined late, and the workers of a main loop count epochs together from its start; launch the job "
        "with more workers"
    )
