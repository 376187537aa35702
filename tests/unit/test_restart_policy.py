"""The restart policy: one worker again, all of them, or nobody."""

import pytest

from platoon_base.controller.restart_policy import Restart, RestartPolicy, WorkerFailed

pytestmark = pytest.mark.base


def failed(rank=1, **changed):
    plain = {"adopted": False, "stopping": False, "bound": False, "centers_dropped": 0}
    return WorkerFailed(rank, **{**plain, **changed})


def run_again(policy, interrupted=False, some_ended_well=False, checkpoint_unfinished=False):
    return policy.all_again(interrupted, some_ended_well, checkpoint_unfinished)


def test_a_worker_is_started_again_as_often_as_allowed():
    policy = RestartPolicy(2, has_checkpoints=False)
    for number in (1, 2):
        restart, warning = policy.worker_failed(failed(3))
        assert (restart, policy.restarts) == (Restart.THIS_ONE, number)
        assert warning == f"restarting rank 3, restart {number} of 2"
    assert policy.worker_failed(failed(3)) == (Restart.NONE, "")
    assert policy.restarts == 2
    assert not run_again(policy)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("why_not", ["adopted", "stopping"])
def test_a_stranger_or_a_worker_of_a_job_that_stops_is_not_started_again(why_not, bound):
    policy = RestartPolicy(2, has_checkpoints=True)
    assert policy.worker_failed(failed(bound=bound, **{why_not: True})) == (Restart.NONE, "")
    assert policy.restarts == 0
    assert not run_again(policy)


def test_after_the_parameters_were_released_a_worker_is_not_started_again():
    policy = RestartPolicy(2, has_checkpoints=True)
    restart, warning = policy.worker_failed(failed(centers_dropped=1))
    assert restart is Restart.NONE
    assert "have released the parameters" in warning
    assert not run_again(policy)


def test_the_workers_of_a_lost_host_are_no_restarts():
    policy = RestartPolicy(1, has_checkpoints=True)
    for rank in (2, 3):
        assert policy.worker_failed(failed(rank, host_lost=True, some_host_lost=True)) == (Restart.NONE, "")
    restart, warning = policy.worker_failed(failed(0, some_host_lost=True))
    assert (restart, policy.restarts) == (Restart.THIS_ONE, 1)
    assert warning == "restarting rank 0, restart 1 of 1"


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_workers_that_need_each_other_are_not_started_again_without_a_lost_host(has_checkpoints):
    policy = RestartPolicy(1, has_checkpoints)
    restart, warning = policy.worker_failed(failed(2, bound=True, host_lost=True, some_host_lost=True))
    assert restart is Restart.NONE
    assert "without the lost host: start the job again on the remaining hosts, with --resume" in warning
    assert policy.worker_failed(failed(0, bound=True, some_host_lost=True)) == (Restart.NONE, "")
    assert policy.restarts == 0
    assert not run_again(policy)


@pytest.mark.parametrize("some_ended_well", [False, True])
def test_workers_that_need_each_other_are_started_again_at_once_from_a_checkpoint(some_ended_well):
    policy = RestartPolicy(1, has_checkpoints=True)
    restart, warning = policy.worker_failed(failed(bound=True))
    assert restart is Restart.ALL
    assert "from the checkpoint" in warning
    assert policy.restarts == 0
    # The others are stopped, which is no failure of theirs.
    assert policy.worker_failed(failed(0, bound=True, stopping=True)) == (Restart.NONE, "")
    assert run_again(policy, some_ended_well=some_ended_well)


@pytest.mark.parametrize("some_ended_well", [False, True])
def test_without_checkpoints_workers_that_need_each_other_are_started_again_if_all_fail(some_ended_well):
    policy = RestartPolicy(1, has_checkpoints=False)
    restart, warning = policy.worker_failed(failed(bound=True))
    assert restart is Restart.NONE
    assert "--checkpoint-every" in warning
    assert run_again(policy, some_ended_well=some_ended_well) is not some_ended_well


@pytest.mark.parametrize("why_not", ["interrupted", "checkpoint_unfinished"])
@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_a_job_that_was_interrupted_or_still_writes_is_not_run_again(why_not, has_checkpoints):
    policy = RestartPolicy(1, has_checkpoints)
    policy.worker_failed(failed(bound=True))
    assert run_again(policy)
    assert not run_again(policy, **{why_not: True})
