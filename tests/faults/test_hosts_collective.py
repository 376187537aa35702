"""Collectives over several hosts in real jobs: what they give, and what happens when a rank of another host fails.

The hosts are pretended (helpers/pretended_hosts.py): on one machine, with one controller. Everything else is real.
"""

from __future__ import annotations

import re

import pytest
from over_hosts import ends, over_hosts, require_lost
from scripts_here import script_path

pytestmark = [pytest.mark.base, pytest.mark.slow]


@pytest.fixture
def run_over(run_job):
    return over_hosts(run_job)


@pytest.mark.parametrize("keys", ["5c" * 32, ","], ids=["encrypted", "plain"])
@pytest.mark.parametrize("workers", ["2+2", "1+2", "1+1+1"])
def test_all_calls_of_a_worker_are_those_of_all_hosts(run_over, workers, keys):
    run_over(workers, script_path("hosts_collective_all_calls"), keys=keys).require_success()


def test_tensors_pass_through_the_host(run_over):
    pytest.importorskip("torch")
    run_over("2+1", script_path("hosts_collective_tensors")).require_success()


@pytest.mark.parametrize(
    ("workers", "victim", "n", "codec"),
    [
        pytest.param("2+2", 3, 10, "none", marks=pytest.mark.promise),
        ("2+2", 3, 2_000_000, "none"),
        ("2+2", 0, 10, "none"),
        ("2+2", 0, 2_000_000, "none"),
        ("1+2", 2, 2_000_000, "none"),
        ("1+1+1", 1, 10, "none"),
        ("2+2", 3, 2_000_000, "int8"),
        ("1+2", 0, 2_000_000, "int8"),
    ],
)
def test_a_killed_rank_ends_the_calls_of_all_hosts_and_is_named(run_over, workers, victim, n, codec):
    require_lost(ends(run_over, workers, "killed", victim, n, codec=codec), victim)


@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("1+2", 0)])
def test_a_refused_call_ends_those_of_all_hosts(run_over, workers, victim):
    outcome = ends(run_over, workers, "refused", victim, n=5)
    for rank, log in enumerate(outcome.logs):
        if rank != victim:
            # Perhaps in the call before, of which a rank of its host may not have the result yet; or it sees that the
            # victim has gone before it gets the reason from the victim's host.
            said = rf"rank {victim} (refused its collective call 2|is lost|has left)"
            assert re.search(rf"(ConfigurationError|WorkerLostError).*{said}", log), log


@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("1+2", 0), ("1+2", 2)])
def test_calls_that_differ_between_hosts_end_on_all_of_them(run_over, workers, victim):
    outcome = ends(run_over, workers, "differs", victim, n=5)
    differ = (
        rf"the ranks differ in collective call 2: .*rank {victim} called all_reduce\(float32 of shape \(6,\), 'sum'\)"
    )
    for log in outcome.logs:
        # A rank of another host may see that the victim has gone before it gets the reason from the victim's host.
        assert re.search(f"{differ}|rank {victim} (is lost|has left)", log), log
    assert re.search(differ, outcome.logs[victim])


@pytest.mark.parametrize("keys", ["5c" * 32, ","], ids=["encrypted", "plain"])
def test_a_rank_that_is_late_for_small_calls_harms_no_link(run_over, keys):
    """The others report whom they wait for, on links that small calls do not use; a large call reads it later."""
    run_over("2+2", script_path("hosts_collective_late"), keys=keys).require_success()


def test_who_is_stopped_for_a_while_is_waited_for(run_over):
    outcome = ends(run_over, "2+2", "stopped", 3, n=3_000_000).require_success()
    assert all("WENT ON" in log for log in outcome.logs)


def test_another_key_on_one_host_is_named_on_all(run_over):
    outcome = ends(run_over, "2+2", "none", -1, n=5, keys=f"{'5c' * 32},{'5d' * 32}")
    for log in outcome.logs:
        assert "PlatoonError" in log
        assert re.search("(has another key|no link to the ranks)", log), log


def test_a_missing_package_on_one_host_is_named_on_all(run_over):
    outcome = run_over("2+1", script_path("hosts_collective_no_package"))
    for rank, log in enumerate(outcome.logs):
        assert re.search(r'ENDED (BackendUnavailable|Platoon)Error .*pip install "platoon-plugins\[hosts\]"', log), log
        assert rank == 2 or "rank 2 on host 1 (h1)" in log


def test_strangers_at_the_listening_ports_of_a_job(run_over):
    """They send what they like to the ports of this job's links, from the first moment until the links are open."""
    run_over("2+1", script_path("hosts_collective_strangers")).require_success()
