"""Mini-batches under the original's names: what is sent, and what arrives."""

import numpy as np
import pytest
from needing import require

require("theano")

from platoon_base.data.batch_memory import MAX_ARRAYS, flatten, unflatten
from platoon_base.errors import ConfigurationError
from platoon_base.platoon_api import Controller, Worker, channel
from platoon_base.platoon_api.data_channel import pack, unpack

RNG = np.random.RandomState(0)


@pytest.mark.parametrize(
    "sent",
    [
        [np.arange(3), np.ones((2, 2), "f4")],
        (np.float32(1.5),),
        RNG.rand(5, 3),
        RNG.randint(9, size=(MAX_ARRAYS + 1, 2, 2)),
        np.arange(4),
        np.zeros((0, 3)),
        [RNG.rand(i % 3, 2).astype("f4") if i % 2 else np.arange(i) for i in range(MAX_ARRAYS + 100)],
    ],
)
def test_what_arrives_is_a_list_of_the_arrays_that_were_sent(sent):
    arrived = unpack(unflatten(*flatten(pack(sent))))
    assert isinstance(arrived, list)
    assert len(arrived) == len(sent)
    for array, expected in zip(arrived, sent):
        assert isinstance(array, np.ndarray)
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("sent", [[], 3, "rows", [1, 2], {"x": np.ones(2)}, np.array(1.0)])
def test_anything_else_is_refused(sent):
    with pytest.raises(ConfigurationError, match="send_mb takes a list of ndarrays, or one ndarray"):
        pack(sent)


def test_the_package_has_the_names_of_both_processes():
    assert (Worker, Controller) == (channel.Worker, channel.Controller)
