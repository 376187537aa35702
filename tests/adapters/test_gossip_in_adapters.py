"""GoSGD in Keras, Lasagne and Blocks: the consensus is validated and left in all models, and keeps what all have."""

import pytest
from needing import needs_blocks, needs_theano
from scripts_here import script_path

pytestmark = pytest.mark.timeout(600)


@pytest.mark.keras
def test_keras_validates_and_keeps_the_consensus(run_keras):
    run_keras(script_path("gossip_in_adapters_keras")).require_success()


@needs_theano
def test_lasagne_evaluates_and_keeps_the_consensus(run_lasagne):
    run_lasagne(script_path("gossip_in_adapters_lasagne")).require_success()


@needs_theano
@needs_blocks
def test_blocks_monitors_and_keeps_the_consensus(run_blocks):
    run_blocks(script_path("gossip_in_adapters_blocks")).require_success()
