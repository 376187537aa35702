"""Adapters enter the phases in which batches load and validations run: each has what a script slept in it."""

import os
from importlib.util import find_spec

import pytest
from scripts_here import script_path

SLEPT = ("loading", "compute", "validation")


def require_in_their_phases(reported, ranks=2, names=SLEPT):
    for rank in range(ranks):
        slept = {name: reported[f"slept {name}{rank}"] for name in SLEPT}
        clock = {name: reported[f"{name}{rank}"] for name in SLEPT}
        assert all(slept[name] > 0.1 for name in SLEPT)
        for name in names:
            assert clock[name] >= 0.98 * slept[name], (name, slept, clock)
    return reported


@pytest.mark.keras
@pytest.mark.parametrize("workers", [1, 2])
def test_of_a_fit(run_keras, workers):
    outcome = run_keras(script_path("phases_keras"), workers).require_success()
    on_tensorflow = os.environ.get("KERAS_BACKEND") == "tensorflow"  # its compiled step gets the batch: in compute
    require_in_their_phases(outcome.reported, workers, ("compute", "validation") if on_tensorflow else SLEPT)


@pytest.mark.keras
def test_waits_within_a_compiled_step_are_no_computation(run_keras):
    reported = run_keras(script_path("phases_keras_waits"), 2).require_success().reported
    slept = reported["slept compute1"]
    assert slept > 0.5
    assert reported["collective0"] > 0.7 * slept, reported
    assert reported["collective1"] < 0.5 * slept, reported


@pytest.mark.theano
def test_of_a_loop_of_lasagne(run_lasagne):
    require_in_their_phases(run_lasagne(script_path("phases_lasagne")).require_success().reported)


@pytest.mark.blocks
@pytest.mark.skipif(
    find_spec("blocks") is None or find_spec("fuel") is None,
    reason="needs Blocks: BLOCKS=/path/to/a/checkout make test",
)
def test_of_a_main_loop(run_blocks):
    require_in_their_phases(run_blocks(script_path("phases_blocks")).require_success().reported)
