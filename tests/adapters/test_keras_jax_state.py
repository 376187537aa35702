"""On JAX weights are synchronized where the trainer holds them: the same bits as by way of the variables."""

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


@pytest.mark.parametrize(
    ("change", "rule", "period"),
    [("", RULE, 3), ("", RULE, 1), ("sets", RULE, 3), (", two", "LocalSGD(overlap=0.5)", 3)],
    ids=["period of 3", "each batch", "a callback sets weights", "rounds overlap, two steps in a call"],
)
def test_a_fit_has_the_bits_of_one_whose_callback_asks_for_the_state_after_each_batch(trained, change, rule, period):
    """Variables get the state at the ends of epochs, unless it is asked."""
    ways = ("sets", "asks and sets") if change == "sets" else (f"nothing{change}", f"asks{change}")
    (bits, counts), (asked, asked_counts) = (trained(way, rule, period) for way in ways)
    assert len(bits) == 2
    assert bits == asked
    assert max(counts) <= 5
    assert min(asked_counts) >= 12


@pytest.mark.parametrize(("way", "period"), [("copies", 3), ("keeps", 1)])
def test_a_state_that_a_trainer_has_copied_or_kept_has_the_same_bits(trained, way, period):
    """Of a step that is wrapped by one that copies the state, and of one kept from before a synchronization."""
    assert trained(way, RULE, period)[0] == trained("nothing", RULE, period)[0]


def test_the_state_can_be_had_after_an_error_behind_a_synchronization(trained):
    bits, _ = trained("fails", RULE)
    assert len(bits) == 2
