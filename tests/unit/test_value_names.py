"""Which reported values are taken for validation values, by their names."""

import pytest

from platoon_base.cli.recent import is_validation

pytestmark = pytest.mark.base


@pytest.mark.parametrize(
    "name",
    [
        "val_loss",
        "validation loss",
        "valid_cost",
        "valLoss",
        "VAL/acc",
        "test_error_rate",
        "test1",
        "dev.bleu",
        "eval_f1",
    ],
)
def test_of_validation(name):
    assert is_validation(name)


@pytest.mark.parametrize("name", ["value", "latest_rate", "device_ms", "interval", "deviation", "loss", ""])
def test_other_words_that_contain_the_letters(name):
    assert not is_validation(name)
