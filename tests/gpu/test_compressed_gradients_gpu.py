"""Averaged gradients with --hosts-compression on CUDA devices: by NCCL, and on a device that workers share."""

import os

import pytest
from hosts_on_gpus import HostsOnGpus

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
needs_three = pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs three CUDA devices")
needs_four = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four CUDA devices")
SHARED = [["cuda0", "cuda0"], ["cuda0", "cuda0"]]
APART = pytest.param([["cuda0"], ["cuda1"]], marks=needs_two)
IN_PAIRS = pytest.param([["cuda0", "cuda1"], ["cuda2", "cuda3"]], marks=needs_four)
UNEVEN = pytest.param([["cuda0", "cuda1"], ["cuda2"]], marks=needs_three)


@pytest.fixture
def hosts(tmp_path):
    opened = HostsOnGpus(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("codec", ["float16", "bfloat16", "int8", "int4", "int2"])
@pytest.mark.parametrize("devices", [APART, IN_PAIRS, UNEVEN], ids=str)
def test_tensors_get_the_bits_that_the_codecs_give(hosts, codec, devices):
    workers = ",".join(str(len(names)) for names in devices)
    said = hosts.run("compressed_gradients_device", codec, devices, environment={"CODEC": codec, "WORKERS": workers})
    assert said == [[1]] * sum(map(len, devices))


@pytest.mark.parametrize("devices", [SHARED, APART], ids=str)
@pytest.mark.parametrize("way", ["behind", "overlapping"])
def test_a_torch_loop_learns_as_much_with_a_quarter_of_the_bytes(hosts, way, devices):
    hosts.require_same_training("compressed_gradients_torch", devices, [way])


@needs_keras_on_torch_or_jax
@pytest.mark.parametrize("devices", [SHARED, APART], ids=str)
def test_keras_learns_as_much_with_a_quarter_of_the_bytes(hosts, devices):
    hosts.require_same_training("compressed_gradients_keras", devices)
