"""Averaged gradients with --hosts-compression on CUDA devices: by NCCL, and on a device that workers share."""

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
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
needs_four = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four CUDA devices")
SHARED = [["cuda0", "cuda0"], ["cuda0", "cuda0"]]
APART = pytest.param([["cuda0"], ["cuda1"]], marks=needs_two)
IN_PAIRS = pytest.param([["cuda0", "cuda1"], ["cuda2", "cuda3"]], marks=needs_four)
UNEVEN = pytest.param([["cuda0", "cuda1"], ["cuda2"]], marks=needs_four)
# Hosts are this machine: NCCL has to send over TCP, as between machines, so that the bytes can be counted.
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}


@pytest.fixture
def found(tmp_path):
    """Run a script on hosts with these devices; returns what each worker said, such as loss, bits, bytes."""
    opened = []

    def run(script, codec, devices, args=(), environment=None):
        folder = tmp_path / codec
        folder.mkdir()
        variables = {"COLUMNS": "200", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **SOCKETS, **(environment or {})}
        hosts = Hosts(folder, {**clean_environment(), **variables})
        opened.append(hosts)
        for host, names in enumerate(devices):
            options = ["-D", *names, "--no-encryption", "--hosts-compression", codec]
            hosts.start(script_path(script), *options, host=host, hosts=len(devices), args=args)
        assert hosts.wait(180) == [0] * len(devices), "".join(map(hosts.output, range(len(devices))))
        ranks = [host for host, names in enumerate(devices) for _ in names]
        return [hosts.said(rank, host)[-1] for rank, host in enumerate(ranks)]

    yield run
    for hosts in opened:
        hosts.close()


def require_same_training(found, script, devices, args=()):
    exact, compressed = (found(script, codec, devices, args) for codec in ("none", "int8"))
    for workers in (exact, compressed):
        assert len({bits for _, bits, _ in workers}) == 1
    assert exact[0][1] != compressed[0][1]
    assert compressed[0][0] == pytest.approx(exact[0][0], rel=0.05)
    assert sum(sent for *_, sent in compressed) < 0.3 * sum(sent for *_, sent in exact)


@pytest.mark.parametrize("codec", ["float16", "bfloat16", "int8", "int4", "int2"])
@pytest.mark.parametrize("devices", [APART, IN_PAIRS, UNEVEN], ids=str)
def test_tensors_get_the_bits_that_the_codecs_give(found, codec, devices):
    workers = ",".join(str(len(names)) for names in devices)
    said = found("compressed_gradients_device", codec, devices, environment={"CODEC": codec, "WORKERS": workers})
    assert said == [[1]] * sum(map(len, devices))


@pytest.mark.parametrize("devices", [SHARED, APART], ids=str)
@pytest.mark.parametrize("way", ["behind", "overlapping"])
def test_a_torch_loop_learns_as_much_with_a_quarter_of_the_bytes(found, way, devices):
    require_same_training(found, "compressed_gradients_torch", devices, [way])


@needs_keras_on_torch_or_jax
@pytest.mark.parametrize("devices", [SHARED, APART], ids=str)
def test_keras_learns_as_much_with_a_quarter_of_the_bytes(found, devices):
    require_same_training(found, "compressed_gradients_keras", devices)
