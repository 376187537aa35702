"""The examples as shipped, on two hosts (folders of this machine) of two workers and one; nothing in them is new."""

import json
import subprocess
import sys

import numpy as np
import pytest
from needing import marks_of, needs_theano
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment
from tests.jobs.test_examples import BLOCKS_TIMEOUT_S, EXAMPLES, needs_blocks, needs_keras

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BLOCKS_TIMEOUT_S + 20)]


RUNS = [
    pytest.param(
        "lasagne_digits.py",
        ["--plot", "", "--num-epochs", "25"],
        id="lasagne",
        marks=[*marks_of(needs_theano), pytest.mark.rare],
    ),
    pytest.param(
        "lasagne_digits.py",
        ["--plot", "", "--num-epochs", "12", "--sync"],
        id="lasagne-sync",
        marks=marks_of(needs_theano),
    ),
    pytest.param("keras_digits.py", ["--num-epochs", "15"], id="keras", marks=marks_of(needs_keras)),
    pytest.param(
        "keras_digits.py",
        ["--num-epochs", "15", "--sync"],
        id="keras-sync",
        marks=[*marks_of(needs_keras), pytest.mark.rare],
    ),
    pytest.param("blocks_digits.py", ["--num-epochs", "12"], id="blocks", marks=marks_of(needs_blocks)),
    pytest.param("blocks_digits.py", ["--num-epochs", "12", "--sync"], id="blocks-sync", marks=marks_of(needs_blocks)),
]

# Gradients of half a batch each, averaged over two hosts, or of the whole batch in one process.
STEPS = script_path("examples_two_hosts_steps")


@pytest.fixture
def hosts(tmp_path):
    found = Hosts(tmp_path, clean_environment())
    yield found
    found.close()


def run(hosts, code, *args, workers):
    for host, count in enumerate(workers):
        hosts.start(code, host=host, hosts=len(workers), workers=count, args=args)
    statuses = hosts.wait(BLOCKS_TIMEOUT_S)
    assert statuses == [0] * len(workers), "".join(hosts.output(host) for host in range(len(workers)))


@pytest.mark.parametrize(("example", "options"), RUNS)
def test_an_example_trains_on_two_hosts(hosts, tmp_path, example, options):
    run(hosts, (EXAMPLES / example).read_text(), *options, "--summary", "script.json", workers=(2, 1))
    summary = json.loads((tmp_path / "script.json").read_text())
    assert summary["workers"] == 3
    assert summary["test_accuracy"] >= 0.9


@needs_theano
def test_averages_over_two_hosts_are_the_steps_of_one_process(hosts, tmp_path):
    run(hosts, STEPS, "together", workers=(1, 1))
    alone = [sys.executable, STEPS, "alone"]
    subprocess.run(alone, cwd=tmp_path, env=clean_environment(), check=True, timeout=240)
    found = [np.load(tmp_path / f"{name}.npz") for name in ("together-0", "together-1", "alone-0")]
    for name in found[0].files:
        np.testing.assert_array_equal(found[0][name], found[1][name])
        np.testing.assert_allclose(found[0][name], found[2][name], rtol=1e-4, atol=1e-6)
