"""Where the first host listens, by options, torchrun's variables and those of engines."""

import pytest

from platoon_base.hosts import engine_job, find_endpoint, first_of

pytestmark = pytest.mark.base


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, None, ""),
        ({}, "a:1", "a:1"),
        ({"PET_RDZV_ENDPOINT": "b:2", "MASTER_ADDR": "c"}, None, "b:2"),
        ({"PET_RDZV_ENDPOINT": "b:2"}, "a", "a"),
        ({"MASTER_ADDR": "c"}, None, "c"),
        ({"MASTER_ADDR": "c", "MASTER_PORT": "3"}, None, "c:3"),
        ({"MASTER_PORT": "3"}, None, ""),
        ({"SLURM_STEP_NODELIST": "n[08-11]"}, None, ""),  # no job
    ],
)
def test_the_first_that_says_it_counts(environment, given, expected):
    assert find_endpoint(environment, given) == expected


def test_in_a_step_of_slurm_all_find_the_same_and_steps_have_ports_of_their_own():
    environment = {"SLURM_STEP_NODELIST": "n[08-11],m3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    host, port = find_endpoint(environment).split(":")
    assert host == "n08"
    assert 1024 < int(port) < 32768
    ports = {
        find_endpoint({**environment, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(20)
        for step in range(20)
    }
    assert len(ports) > 390


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("h0", "h0"),
        ("h0,h1", "h0"),
        ("h[0-1]", "h0"),
        ("node[008-011,020]-ib,login", "node008-ib"),
        ("a-b.c[3,7]", "a-b.c3"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_list(nodes, first):
    assert first_of(nodes) == first


def test_the_processes_of_one_mpirun_share_a_name():
    assert engine_job({"PMIX_NAMESPACE": "prterun-h0-1@1"}) == "PMIX_NAMESPACE-prterun_h0_1_1"
    assert engine_job({"PMI_JOBID": "5"}) == "PMI_JOBID-5"
    assert engine_job({}) == ""
