"""Hosts that are lost, cut off for a while or for ever, and launchers that are killed: each in a real network."""

import json
import signal
import time

import pytest
from launching_in_laboratory import GOES_ON, script
from scripts_here import script_path

LOST_S = 2.5  # within which the end of a host's processes is noticed
ENDED_S = 5.0  # within which the other hosts end when the first one is lost


def stalls(job, rank):
    """Return the times in seconds for which a worker made no step, those above 0.3 s."""
    return [line[1] for line in job.said(rank) if line[0] == "stalled"]


def steps_until(job, rank, timeout_s=30):
    """Wait until a worker has made another step, by its lines."""
    path = job.laboratory.folder / "steps"
    before = path.read_text() if path.exists() else ""
    deadline = time.monotonic() + timeout_s
    while (path.read_text() if path.exists() else "") == before:
        assert time.monotonic() < deadline, job.text()
        time.sleep(0.01)


# Meets like `MEETS`, and leaves a note of the last step of rank 0.
NOTES = script_path("losses_notes")


@pytest.fixture
def noting(start_job, make_laboratory):
    """Start a job whose workers gather again and again."""

    def start(*options, workers=(1, 1)):
        there = make_laboratory(len(workers))
        job = start_job(NOTES, *options, workers=workers, in_laboratory=there, args=[there.folder])
        job.until_said("meets")
        steps_until(job, 0)
        return job

    return start


def gathered(job):
    return json.loads((job.laboratory.folder / "steps").read_text())


def until_gathered(job, ranks, timeout_s=30):
    """Wait until the workers gather among these ranks; returns how long it took, in seconds."""
    began = time.monotonic()
    while gathered(job)[1] != ranks:
        assert time.monotonic() - began < timeout_s, (gathered(job), job.text())
        time.sleep(0.01)
    return time.monotonic() - began


def end(job, *hosts):
    """End the job by Ctrl-C on the first host; returns the exit statuses of these."""
    job.launchers[0].send_signal(signal.SIGINT)
    return [job.launchers[host].wait(20) for host in hosts]


def test_a_host_whose_processes_die_at_once_is_lost_and_the_others_go_on(noting):
    job = noting(workers=(1, 2, 1))
    job.laboratory.hosts[1].kill()  # its kernel says that the connections are closed
    assert until_gathered(job, [0, 3]) < LOST_S
    job.until_output(0, "lost host 1 (h1) with workers 1, 2")  # written by another process than the gathering ones
    assert end(job, 0, 2) == [130, 130], job.text()


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("seconds", [1, 5])
def test_a_cut_that_mends_loses_nothing(noting, target, seconds):
    job = noting(workers=(1, 1, 1))
    host = job.laboratory.hosts[target]
    job.laboratory.cut(host)
    time.sleep(seconds)
    before = gathered(job)[0]
    job.laboratory.mend(host)
    began = time.monotonic()
    while gathered(job)[0] == before:
        assert time.monotonic() - began < 10, job.text()
        time.sleep(0.005)
    took = time.monotonic() - began
    assert gathered(job)[1] == [0, 1, 2]
    steps_until(job, 0)
    assert end(job, 0, 1, 2) == [130] * 3, job.text()
    # TCP waits up to as long again as the cut took; after 2 s there is a new connection.
    assert took < (1.0 if seconds > 3 else 1.5), f"went on {took:.2f} s after mending"
    assert "lost host" not in job.output(0) + job.output(1)
    if seconds > 3:
        assert "no heartbeat from host" in job.output(0)
        assert "sends heartbeats again" in job.output(0)


@pytest.mark.promise
def test_a_host_that_is_cut_off_for_ever_is_lost_and_ends_too(noting):
    """A host without power is as silent, and so is the first one to this host."""
    job = noting("--host-timeout", "3", workers=(1, 1, 1))
    job.laboratory.cut(job.laboratory.hosts[1])
    took = until_gathered(job, [0, 2])
    assert 2.5 < took < 4.5
    began = time.monotonic()
    assert job.launchers[1].wait(20) == 1, job.text()
    assert time.monotonic() - began < 1 + ENDED_S
    assert "lost host 0 (it sent no heartbeat for 3." in job.output(1)
    assert end(job, 0, 2) == [130, 130], job.text()


@pytest.mark.promise
def test_workers_that_do_not_wait_are_not_held_up_by_a_cut(start_job):
    job = start_job(script(GOES_ON), "--host-timeout", "20")
    job.until_said("goes on")
    job.laboratory.cut(job.laboratory.hosts[1])
    time.sleep(5)
    job.laboratory.mend(job.laboratory.hosts[1])
    job.launchers[0].send_signal(signal.SIGINT)
    assert job.wait(20) == [130, 130], job.text()
    assert [stalls(job, rank) for rank in (0, 1)] == [[], []]


def test_a_signal_that_comes_while_a_host_is_cut_off_reaches_it_in_the_end(noting):
    job = noting(workers=(1, 1))
    job.laboratory.cut(job.laboratory.hosts[1])
    job.launchers[1].send_signal(signal.SIGTERM)
    time.sleep(1)
    job.laboratory.mend(job.laboratory.hosts[1])
    assert job.wait(20) == [143, 143], job.text()


@pytest.mark.parametrize("host", [0, 1])
def test_the_second_of_two_signals_kills(start_job, host):
    stubborn = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    job = start_job(script(stubborn + GOES_ON.replace("while not worker.should_stop", "while True")))
    job.until_said("goes on")
    job.launchers[host].send_signal(signal.SIGINT)
    began = time.monotonic()
    job.launchers[0].until("stopping: SIGINT")
    job.launchers[host].send_signal(signal.SIGINT)
    statuses = job.wait(20)
    assert time.monotonic() - began < 6, "the second signal has to kill, not --grace"
    assert statuses[0] == statuses[1] != 0, job.text()
