"""GoSGD in Keras, Lasagne and Blocks: the consensus is validated and left in all models, and keeps what all have.

The same scripts run on one host and on two, which are folders of this machine.
"""

import pytest
from needing import needs, needs_theano
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment

pytestmark = pytest.mark.timeout(600)

needs_blocks = needs("blocks", "blocks", "needs Blocks: BLOCKS=/path/to/a/checkout make test")


@pytest.mark.keras
def test_keras_validates_and_keeps_the_consensus(run_keras):
    run_keras(script_path("gossip_in_adapters_keras"), workers=2).require_success()


@needs_theano
def test_lasagne_evaluates_and_keeps_the_consensus(run_lasagne):
    run_lasagne(script_path("gossip_in_adapters_lasagne"), workers=2).require_success()


@needs_theano
@needs_blocks
def test_blocks_monitors_and_keeps_the_consensus(run_blocks):
    run_blocks(script_path("gossip_in_adapters_blocks"), workers=2).require_success()


@pytest.fixture
def over_two_hosts(tmp_path):
    """Run a script with a worker on each of two hosts."""
    hosts = Hosts(tmp_path, clean_environment())

    def run(name):
        assert hosts.run(script_path(name), workers=(1, 1), args=[str(tmp_path)]) == [0, 0], hosts.log(
            0, 0
        ) + hosts.log(1, 1)

    yield run
    hosts.close()


@pytest.mark.keras
@pytest.mark.slow
def test_keras_keeps_the_consensus_of_two_hosts(over_two_hosts):
    over_two_hosts("gossip_in_adapters_keras")


@needs_theano
@pytest.mark.slow
def test_lasagne_keeps_the_consensus_of_two_hosts(over_two_hosts):
    over_two_hosts("gossip_in_adapters_lasagne")


@needs_theano
@needs_blocks
@pytest.mark.slow
def test_blocks_keeps_the_consensus_of_two_hosts(over_two_hosts):
    over_two_hosts("gossip_in_adapters_blocks")
