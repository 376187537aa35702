"""On JAX weights are synchronized where the trainer holds them: the same bits as by way of the variables."""

import pytest
from keras_here import KERAS_2, keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(KERAS_2 or keras.backend.backend() != "jax", reason="is about Keras on JAX: KERAS_BACKEND=jax"),
]

RULE = "EASGD(alpha=0.4, moments=True)"


@pytest.fixture
def trained(platoon, tmp_path):
    """Run the script; returns for each worker the hash of its weights, and how often variables got the state."""

    def run(way, rule, period=3):
        script = script_path("keras_jax_state"), way, rule, str(period)
        done = platoon("launch", "-n", 2, "--log-dir", "logs", "--deterministic", *script)
        logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
        assert done.returncode == 0, done.stdout + done.stderr + "".join(logs)
        lines = [line.split() for log in logs for line in log.splitlines() if line.startswith("rank ")]
        assert [model for *_, model in lines] == ["gone"] * 2  # nothing of this package keeps it
        return [bits for _, _, bits, *_ in lines], [int(count) for _, _, _, count, _ in lines]

    return run


def require_the_lists(counts, asked_counts):
    """Variables get the state at the ends of epochs, unless it is asked."""
    assert max(counts) <= 5
    assert min(asked_counts) >= 12


def test_a_fit_has_the_bits_of_one_whose_callback_asks_for_the_state_after_each_batch(trained):
    (bits, counts), (asked, asked_counts) = trained("nothing", RULE), trained("asks", RULE)
    assert len(bits) == 2
    assert bits == asked
    require_the_lists(counts, asked_counts)
    # Where the step is wrapped by one that copies the state, the variables are used.
    assert trained("copies", RULE)[0] == bits


def test_a_fit_that_synchronizes_at_each_batch_does_so_by_the_lists(trained):
    (bits, counts), (asked, asked_counts) = trained("nothing", RULE, 1), trained("asks", RULE, 1)
    assert len(bits) == 2
    assert bits == asked
    require_the_lists(counts, asked_counts)


def test_a_state_that_a_trainer_has_kept_from_before_a_synchronization_is_not_trained_on(trained):
    (bits, counts), (kept, kept_counts) = trained("nothing", RULE, 1), trained("keeps", RULE, 1)
    assert bits == kept
    assert counts == kept_counts


def test_weights_that_a_callback_sets_within_an_epoch_are_trained_on(trained):
    (bits, counts), (asked, asked_counts) = trained("sets", RULE), trained("asks and sets", RULE)
    assert bits == asked
    require_the_lists(counts, asked_counts)


def test_rounds_that_overlap_with_several_steps_of_one_call_have_the_same_bits(trained):
    rule = "LocalSGD(overlap=0.5)"
    (bits, counts), (asked, asked_counts) = trained("nothing, two", rule), trained("asks, two", rule)
    assert bits == asked
    require_the_lists(counts, asked_counts)


def test_the_state_can_be_had_after_an_error_behind_a_synchronization(trained):
    bits, _ = trained("fails", RULE)
    assert len(bits) == 2
