"""On JAX weights are synchronized where the trainer holds them: the same bits as by way of the variables."""

import re

import pytest
from keras_here import KERAS_2, keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backend,
    pytest.mark.timeout(600),
    pytest.mark.skipif(KERAS_2 or keras.backend.backend() != "jax", reason="is about Keras on JAX: KERAS_BACKEND=jax"),
]

RULE = "EASGD(alpha=0.4, moments=True)"


@pytest.fixture
def trained(run_job):
    """Run the script; returns for each worker the hash of its weights, and how often variables got the state."""

    def run(way, rule, period):
        outcome = run_job(script_path("keras_jax_state"), args=[way, rule, str(period)], deterministic=True)
        logs = outcome.require_success().logs
        lines = [re.findall(r"^rank .*", log, re.MULTILINE)[-1].split() for log in logs]  # Earlier jobs wrote before.
        assert [model for *_, model in lines] == ["gone"] * 2  # nothing of this package keeps it
        return [bits for _, _, bits, *_ in lines], [int(count) for _, _, _, count, _ in lines]

    return run


@pytest.mark.parametrize(
    ("ways", "rule", "period"),
    [
        (["nothing", "asks", "copies"], RULE, 3),
        (["nothing", "asks", "keeps"], RULE, 1),
        (["sets", "asks and sets"], RULE, 3),
        (["nothing, two", "asks, two"], "LocalSGD(overlap=0.5)", 3),
    ],
    ids=["period of 3", "each batch", "a callback sets weights", "rounds overlap, two steps in a call"],
)
def test_a_fit_has_the_bits_of_one_whose_callback_asks_for_the_state_after_each_batch(trained, ways, rule, period):
    """Variables get the state at the ends of epochs, unless it is asked.

    The same bits also has a state that a wrapped step has copied, or kept from before a synchronization.
    """
    (bits, counts), (asked, asked_counts), *others = (trained(way, rule, period) for way in ways)
    assert len(bits) == 2
    assert all(found == bits for found, _ in ((asked, asked_counts), *others))
    assert max(counts) <= 5
    assert min(asked_counts) >= 12


def test_the_state_can_be_had_after_an_error_behind_a_synchronization(trained):
    bits, _ = trained("fails", RULE, 3)
    assert len(bits) == 2
