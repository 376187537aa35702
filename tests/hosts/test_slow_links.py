"""Compressed exchange over slow links: hosts that are killed within a round, or cut off, and centers without rounds."""

import signal

import pytest
from laboratory import until
from scripts_here import script_path

ROUNDS = script_path("slow_links_rounds")


def rounds_of(job, rank):
    """Return what a worker had after each round."""
    return {line[1]: line[2] for line in job.said(rank) if line[0] == "ended"}


def begun(job, rank):
    return max((line[1] for line in job.said(rank) if line[0] == "begins"), default=0)


def until_round(job, rank, number):
    until(lambda: number in rounds_of(job, rank), job.text, 60)


def require_equal(job, first, *others):
    for other in others:
        mine, theirs = rounds_of(job, first), rounds_of(job, other)
        both = set(mine) & set(theirs)
        assert len(both) > 4
        assert {number: mine[number] for number in both} == {number: theirs[number] for number in both}


@pytest.mark.parametrize("codec", ["int8", "topk(0.01)"])
def test_a_host_killed_within_a_round_leaves_the_others_with_equal_bits(make_laboratory, start_job, codec):
    there = make_laboratory(3, delay_ms=5)
    there.limit("100mbit")
    options = ["--hosts-compression", codec, "--allow-failures"]
    job = start_job(ROUNDS, *options, workers=(1, 1, 1), in_laboratory=there)
    until_round(job, 2, 2)
    number = begun(job, 2)
    until(lambda: begun(job, 2) > number, job.text, 60)  # it has just contributed to a round that all others make too
    there.hosts[2].kill()
    job.until_output(0, "lost host 2 (h2)")
    until_round(job, 0, begun(job, 0) + 4)
    job.launchers[0].send_signal(signal.SIGINT)
    assert [job.launchers[host].wait(30) for host in (0, 1)] == [130, 130], job.text()
    require_equal(job, 0, 1)


@pytest.mark.slow
def test_hosts_find_each_other_over_a_round_trip_of_2_s(start_job, make_laboratory):
    job = start_job(script_path("slow_round_trips"), in_laboratory=make_laboratory(2, delay_ms=500))
    assert job.wait(180) == [0, 0], job.text()
    assert "lost" not in job.text()
