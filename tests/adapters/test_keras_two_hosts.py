"""Keras's `fit` with the default rule on two hosts, which are folders of this machine."""

import json

import pytest
from keras_here import KERAS_2, keras
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment

pytestmark = [pytest.mark.keras, pytest.mark.slow]


@pytest.fixture
def hosts(tmp_path):
    found = Hosts(tmp_path, {**clean_environment(), "KERAS_BACKEND": keras.backend.backend()})
    yield found
    found.close()


def test_all_hosts_end_with_the_average_that_was_validated(hosts):
    code = script_path("keras_two_hosts_end_with_the_average")
    environment = {"PLATOON_HOSTS_EVERY_S": "0.01"}
    assert hosts.run(code, workers=(2, 1), environment=environment) == [0, 0], hosts.output(0)
    told = [
        json.loads(hosts.log(rank, host).split("found ")[1].splitlines()[0]) for rank, host in ((0, 0), (1, 0), (2, 1))
    ]
    assert told == [told[0]] * 3
    assert told[0]["validated"] == pytest.approx(told[0]["evaluated"], rel=1e-5)
    assert "with 3 workers, steps are 3.46 times as long" in hosts.log(0, 0)
    if not KERAS_2:
        assert "each worker or host would have its own average" in told[0]["refused"]
