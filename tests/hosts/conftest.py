"""Fixtures: laboratories of several hosts, the jobs on them, and engines that start the launchers."""

import engines
import laboratory as laboratories
import pytest
from launching_in_laboratory import Job


@pytest.fixture
def make_laboratory():
    """Make laboratories; after the test no job may have left anything on any host that is still there."""
    problem = laboratories.problem()
    if problem:
        pytest.skip(problem)
    made = []

    def make(hosts=2, **options):
        made.append(laboratories.Laboratory(hosts, **options))
        return made[-1].__enter__()

    yield make
    left = {}
    try:
        for each in made:
            laboratories.until(lambda each=each: not each.leftovers(), each.leftovers, 15)
    except AssertionError as exc:
        left = str(exc)
    for each in reversed(made):
        each.__exit__(None, None, None)
    assert not left, f"left behind on the hosts: {left}"


@pytest.fixture
def laboratory(make_laboratory):
    """Make two hosts."""
    return make_laboratory(2)


@pytest.fixture
def start_job(make_laboratory):
    """Start the launchers of a job on hosts, by hand; returns a `Job`."""
    jobs = []

    def start(script, *options, workers=(1, 1), in_laboratory=None, **kwargs):
        there = in_laboratory or make_laboratory(len(workers))
        jobs.append(Job(there, script, workers))
        jobs[-1].start(*options, **kwargs)
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def slurm(laboratory):
    """Start Slurm on two hosts."""
    if problem := engines.slurm_problem():
        pytest.skip(problem)
    with engines.Slurm(laboratory) as cluster:
        yield cluster
        laboratories.until(lambda: not cluster.leftovers(), cluster.leftovers, 15)


@pytest.fixture
def mpi(laboratory):
    """Make two hosts that mpirun starts processes on."""
    if problem := engines.mpi_problem():
        pytest.skip(problem)
    return engines.OpenMpi(laboratory)
