"""Averaged gradients with --hosts-compression on CUDA devices: workers that share one do without NCCL."""

import os

import pytest
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (see tests/README.md)"),
]
needs_keras_on_torch_or_jax = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") not in ("torch", "jax"), reason="needs KERAS_BACKEND=torch, or jax for CUDA"
)


@pytest.fixture
def found(tmp_path):
    """Run a script on two hosts whose four workers share a device; returns what each worker said: loss, bits, bytes."""
    opened = []

    def run(script, codec, args=()):
        folder = tmp_path / codec
        folder.mkdir()
        hosts = Hosts(folder, {**clean_environment(), "COLUMNS": "200", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
        opened.append(hosts)
        for host in range(2):
            options = ["-D", "cuda0", "cuda0", "--no-encryption", "--hosts-compression", codec]
            hosts.start(script_path(script), *options, host=host, args=args)
        assert hosts.wait(180) == [0, 0], hosts.output(0) + hosts.output(1)
        return [hosts.said(rank, host)[-1] for host in range(2) for rank in (2 * host, 2 * host + 1)]

    yield run
    for hosts in opened:
        hosts.close()


def require_same_training(found, script, args=()):
    exact, compressed = (found(script, codec, args) for codec in ("none", "int8"))
    for workers in (exact, compressed):
        assert len({bits for _, bits, _ in workers}) == 1
    assert exact[0][1] != compressed[0][1]
    assert compressed[0][0] == pytest.approx(exact[0][0], rel=0.05)
    assert sum(sent for *_, sent in compressed) < 0.3 * sum(sent for *_, sent in exact)


@pytest.mark.parametrize("way", ["behind", "overlapping"])
def test_a_torch_loop_learns_as_much_with_a_quarter_of_the_bytes(found, way):
    require_same_training(found, "compressed_gradients_torch", [way])


@needs_keras_on_torch_or_jax
def test_keras_learns_as_much_with_a_quarter_of_the_bytes(found):
    require_same_training(found, "compressed_gradients_keras")
