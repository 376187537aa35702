"""`platoon launch` by hand on hosts of their own: what one world of workers does together."""

import json

import pytest
from scripts_here import script_path

TOGETHER = script_path("launching_together")


@pytest.mark.parametrize(
    "workers",
    [(1, 1), pytest.param((2, 1), marks=pytest.mark.product), pytest.param((1, 3, 2), marks=pytest.mark.product)],
    ids=str,
)
@pytest.mark.promise
def test_workers_of_all_hosts_are_one_world(start_job, workers):
    summary = "summary.json"
    job = start_job(TOGETHER, workers=workers, each={0: ["--summary", summary]})
    assert job.wait() == [0] * len(workers), job.text()
    size = sum(workers)
    hosts = [host for host, count in enumerate(workers) for _ in range(count)]
    shards = []
    for rank, host in enumerate(hosts):
        said = {word: rest for word, *rest in job.said(rank)}
        local = rank - job.rank_on(host)
        assert said["place"] == [rank, size, local, workers[host], f"h{host}", "/tmp/home"]
        assert said["gathered"] == [[[other, f"h{hosts[other]}"] for other in range(size)]]
        assert said["metrics"] == [(size - 1) / 2]
        assert said["sum"] == [[total * size * (size - 1) / 2 for total in (0, 1, 2)]]
        shards += said["shard"][0]
    assert sorted(shards) == list(range(23))
    found = json.loads((job.laboratory.folder / summary).read_text())
    assert [found[f"by_{rank}"] for rank in range(size)] == list(range(size))
    assert f"{size} workers on {len(workers)} hosts" in job.output(0)


def test_variables_of_torchrun_will_do(laboratory):
    """As a manifest of Kubernetes sets them, whose indexed jobs number the hosts."""
    from launching_in_laboratory import Job, launch_words

    job = Job(laboratory, TOGETHER, (1, 1))
    job.write_key(*laboratory.hosts)
    for index, host in enumerate(laboratory.hosts):
        words = launch_words("-n", 1, "-D", "cpu", "--log-dir", laboratory.folder / f"logs{index}", job.script)
        variables = {"PET_NNODES": "2", "JOB_COMPLETION_INDEX": str(index), "PET_RDZV_ENDPOINT": "h0:29400"}
        job.launchers.append(host.start(*words, environment=variables))
    assert job.wait() == [0, 0], job.text()
