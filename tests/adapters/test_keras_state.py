"""All state of a model is one on all workers: of any dtype, of layers, optimizers and torch modules."""

import pytest
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_after_fit_all_state_is_one(run_keras, mode):
    """Each worker begins with other values; the rules by hand, and everything bit for bit, after two fits."""
    run_keras(script_path("keras_state_of_a_zoo_is_one_on_all_workers"), workers=2, args=[mode]).require_success()
