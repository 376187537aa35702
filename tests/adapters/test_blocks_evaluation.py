"""Monitoring divided among workers, against that of Blocks on the whole stream in one process."""

import re

import pytest
from needing import require
from scripts_here import script_path

require("blocks.main_loop")


pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("workers", "rows"),
    [pytest.param(3, 77, marks=pytest.mark.promise), (2, 8), (3, 13)],
    ids=["unequal", "one batch", "fewer batches than workers"],
)
def test_every_kind_of_variable_is_that_of_one_process(run_blocks, workers, rows):
    """The last batch is smaller; with a center, the values are the center's."""
    run_blocks(
        script_path("blocks_evaluation_every_kind"),
        args=[str(rows)],
        workers=workers,
    ).require_success()


@pytest.mark.parametrize(
    ("script", "workers"),
    [
        ("averaged_gradients_are_monitored_exactly_at_every_epoch", 2),
        pytest.param("batches_of_transformers_are_those_of_one_process", 3, marks=pytest.mark.slow),
        ("training_is_monitored_over_the_batches_of_all", 3),
        ("an_unknown_aggregation_scheme_is_refused", 2),
    ],
)
def test_workers(run_blocks, script, workers):
    run_blocks(script_path(f"blocks_evaluation_{script}"), workers).require_success()


def test_when_a_worker_dies_the_others_do_its_part(run_blocks):
    outcome = run_blocks(script_path("blocks_evaluation_when_a_worker_dies_the_others_do_its_part"), workers=3)
    assert [e.status for e in sorted(outcome.result.exits)] == [0, 137, 0], outcome.logs
    told = "own: from now on the batches of rank 1 are missing, which only that rank had"
    assert [log.count(told) for log in outcome.logs] == [1, 0, 0], outcome.logs


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("shard_stream(stream(45))", "pass the whole stream"),
        ("ServerDataStream(('features', 'targets'), False)", "a stream from a ServerDataStream.*sharded=True"),
    ],
)
def test_a_stream_that_cannot_be_divided_is_refused(run_blocks, bad, complaint):
    outcome = run_blocks(
        f"""
        from fuel.streams import ServerDataStream
        cost, error = network()
        monitoring = DistributedMonitoring([cost], {bad})
        loop(cost, shard_stream(stream(16)), [monitoring, ParameterSync(EASGD())]).run()
        """
    )
    assert outcome.result.status == 1
    assert all(re.search(f"ConfigurationError: .*{complaint}", log) for log in outcome.logs), outcome.logs
