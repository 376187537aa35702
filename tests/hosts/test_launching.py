"""`platoon launch` by hand on hosts of their own: what one world of workers does together."""

import json

import pytest
from launching_in_laboratory import Job, launch_words
from scripts_here import script_path

TOGETHER = script_path("launching_together")


@pytest.mark.promise
def test_variables_of_torchrun_make_one_world_of_the_workers_of_all_hosts(laboratory):
    """As a manifest of Kubernetes sets them, whose indexed jobs number the hosts.

    Other numbers of hosts, started by options, are in jobs/test_two_hosts.py.
    """
    job = Job(laboratory, TOGETHER, (2, 1))
    job.write_key(*laboratory.hosts)
    for index, host in enumerate(laboratory.hosts):
        more = ["-D", "cpu", "--log-dir", laboratory.folder / f"logs{index}"]
        more += ["--summary", laboratory.folder / "summary.json"] * (index == 0)
        words = launch_words("-n", job.workers[index], *more, job.script)
        variables = {"PET_NNODES": "2", "JOB_COMPLETION_INDEX": str(index), "PET_RDZV_ENDPOINT": "h0:29400"}
        job.launchers.append(host.start(*words, environment=variables))
    assert job.wait() == [0, 0], job.text()
    shards, names = [], ["h0", "h0", "h1"]
    for rank, place in enumerate(([0, 3, 0, 2, "h0"], [1, 3, 1, 2, "h0"], [2, 3, 0, 1, "h1"])):
        said = {word: rest for word, *rest in job.said(rank)}
        assert said["place"] == [*place, "/tmp/home"]
        assert said["gathered"] == [[[other, name] for other, name in enumerate(names)]]
        assert said["metrics"] == [1.0]
        assert said["sum"] == [[0, 3, 6]]
        shards += said["shard"][0]
    assert sorted(shards) == list(range(23))
    found = json.loads((laboratory.folder / "summary.json").read_text())
    assert [found[f"by_{rank}"] for rank in range(3)] == [0, 1, 2]
    assert "3 workers on 2 hosts" in job.output(0)
