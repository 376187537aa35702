"""The examples as shipped, on two hosts (folders of this machine) of two workers and one; nothing in them is new."""

import json

import pytest
from needing import marks_of, needs_theano

from tests.helpers.launching_hosts import Hosts, clean_environment
from tests.jobs.test_examples import EXAMPLES, TIMEOUT_S, needs_blocks, needs_keras

pytestmark = [pytest.mark.rare, pytest.mark.timeout(TIMEOUT_S + 20)]


LASAGNE = ["--plot", "", "--num-epochs", "12", "--sync"]
RUNS = [
    pytest.param("lasagne_digits.py", LASAGNE, id="lasagne-sync", marks=marks_of(needs_theano)),
    pytest.param("keras_digits.py", ["--num-epochs", "15"], id="keras", marks=marks_of(needs_keras)),
    pytest.param("blocks_digits.py", ["--num-epochs", "12"], id="blocks", marks=marks_of(needs_blocks)),
]


@pytest.fixture
def hosts(tmp_path):
    found = Hosts(tmp_path, clean_environment())
    yield found
    found.close()


def run(hosts, code, *args, workers):
    for host, count in enumerate(workers):
        hosts.start(code, host=host, hosts=len(workers), workers=count, args=args)
    statuses = hosts.wait(TIMEOUT_S)
    assert statuses == [0] * len(workers), "".join(hosts.output(host) for host in range(len(workers)))


@pytest.mark.parametrize(("example", "options"), RUNS)
def test_an_example_trains_on_two_hosts(hosts, tmp_path, example, options):
    run(hosts, (EXAMPLES / example).read_text(), *options, "--summary", "script.json", workers=(2, 1))
    summary = json.loads((tmp_path / "script.json").read_text())
    assert summary["workers"] == 3
    assert summary["test_accuracy"] >= 0.9
