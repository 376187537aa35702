"""--deterministic with Keras: scripts without seeds have the same bits in two runs, and after a resume."""

import numpy as np
import pytest
from keras_here import KERAS_2, keras, needs_keras_3
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.slow]

SCRIPT = script_path("deterministic_keras")
WORKERS = 2


@pytest.fixture
def bits(platoon, tmp_path):
    """Run the script, and return the lines with the hashes of all workers' weights and their losses."""

    def run(*options, rule, epochs=3, fail_at=None):
        words = [rule, epochs] if fail_at is None else [rule, epochs, fail_at]
        done = platoon("launch", "-n", WORKERS, "--log-dir", "logs", "--deterministic", *options, SCRIPT, *words)
        logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(WORKERS)]
        assert (done.returncode == 0) == (fail_at is None), done.stdout + done.stderr + "".join(logs)
        return [line for log in logs for line in log.splitlines() if line.startswith("bits of rank")]

    return run


@pytest.mark.parametrize("rule", ["gradients", "EASGD(alpha=0.4)"])
def test_two_runs_without_seeds_have_the_same_bits(bits, rule):
    first = bits(rule=rule)
    assert len(first) == WORKERS
    assert len({line.split()[4] for line in first}) == 1  # all workers end with one model
    assert bits(rule=rule) == first
    assert rule == "gradients" or bits("--seed", 3, rule=rule) != first


@needs_keras_3
@pytest.mark.skipif(not KERAS_2 and keras.backend.backend() == "tensorflow", reason="its shuffles begin anew")
def test_a_killed_fit_that_goes_on_from_its_backup_ends_with_the_bits_of_one_that_was_not(bits, tmp_path):
    epochs, fail_at = 4, 2
    whole = bits(rule="gradients", epochs=epochs)
    assert not bits(rule="gradients", epochs=epochs, fail_at=fail_at)
    assert (tmp_path / "backup").exists()
    resumed = bits(rule="gradients", epochs=epochs)
    assert [line.split()[4] for line in resumed] == [line.split()[4] for line in whole]
    losses = [np.array(line.split()[5:], float).reshape(2, -1)[:, -2:] for line in (whole[0], resumed[0])]
    np.testing.assert_array_equal(losses[0], losses[1])
