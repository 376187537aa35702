"""Monitoring divided among workers, against that of Blocks on the whole stream in one process."""

import re

import pytest
from scripts_here import script_path

from platoon_base import compat

compat.apply()
pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")


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


def test_averaged_gradients_are_monitored_exactly_at_every_epoch(run_blocks):
    run_blocks(script_path("blocks_evaluation_averaged_gradients_are_monitored_exactly")).require_success()


@pytest.mark.slow
def test_batches_that_transformers_make_are_those_of_one_process(run_blocks):
    """Examples put together into batches, filtered ones, shuffled ones, and batches that each worker has of its own."""
    run_blocks(script_path("blocks_evaluation_batches_that_transformers_make_are_those"), workers=3).require_success()


def test_training_is_monitored_over_the_batches_of_all(run_blocks):
    """The learning rate is 0: so it does not matter in which order one process sees the same batches."""
    run_blocks(script_path("blocks_evaluation_training_is_monitored_over_the_batches"), workers=3).require_success()


def test_when_a_worker_dies_the_others_do_its_part(run_blocks):
    outcome = run_blocks(script_path("blocks_evaluation_when_a_worker_dies_the_others_do_its_part"), workers=3)
    assert [e.status for e in sorted(outcome.result.exits)] == [0, 137, 0], outcome.logs
    told = "own: from now on the batches of rank 1 are missing, which only that rank had"
    assert [log.count(told) for log in outcome.logs] == [1, 0, 0], outcome.logs


def test_an_unknown_aggregation_scheme_is_refused_until_it_is_registered(run_blocks):
    run_blocks(script_path("blocks_evaluation_an_unknown_aggregation_scheme_is_refused")).require_success()


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
