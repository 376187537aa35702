"""Averaged gradients with `platoon launch --hosts-compression`; hosts are folders of this machine."""

import json
import os

import pytest
from needing import marks_of, needs, needs_blocks, needs_loops, needs_theano
from same_training import require_alike, require_fewer_bytes
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment

needs_torch = needs_loops("torch")
needs_keras = needs("keras", "keras", "needs Keras")
needs_keras_on_torch = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="needs Keras on torch: KERAS_BACKEND=torch in .nox/keras3"
)

needs_keras_on_jax = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "jax", reason="needs Keras on JAX: KERAS_BACKEND=jax in .nox/keras3"
)
needs_keras_on_devices = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") not in ("jax", "torch"), reason="needs Keras on JAX or torch: KERAS_BACKEND"
)
ON_DEVICES = pytest.param("devices", marks=[needs_keras_on_devices, pytest.mark.slow])


def environment_of(where, request):
    """Return the variables of gradients that stay on devices, which are the processor.

    On JAX they are combined by the kernels for CUDA and transfers of NCCL, on torch as tensors.
    """
    if where == "host":
        return {}
    found = {"PLATOON_TEST_TENSORS": "1", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if os.environ["KERAS_BACKEND"] == "jax":
        folder = str(request.getfixturevalue("processor_driver"))
        found |= {"PROCESSOR_NCCL": folder, "LD_LIBRARY_PATH": folder}
    return found


@pytest.fixture
def trained(tmp_path):
    """Make a function that trains on hosts; returns what each worker said: loss, bits, bytes."""
    opened = []

    def train(script, codec, workers=(1, 1), args=(), says=True, environment=None, statuses=None):
        folder = tmp_path / codec
        folder.mkdir()
        hosts = Hosts(folder, {**clean_environment(), "COLUMNS": "200", **(environment or {})})
        opened.append(hosts)
        train.hosts = hosts
        done = hosts.run(script_path(script), "--hosts-compression", codec, workers=workers, args=args)
        assert done == (statuses or [0] * len(workers)), "".join(map(hosts.output, range(len(workers))))
        if not says:
            return None
        hosts_of_ranks = [host for host, count in enumerate(workers) for _ in range(count)]
        return [
            json.loads(next(line for line in hosts.log(rank, host).splitlines() if line.startswith("[")))
            for rank, host in enumerate(hosts_of_ranks)
        ]

    yield train
    for hosts in opened:
        hosts.close()


def require_same_training(trained, script, workers=(1, 1), args=()):
    exact, compressed = (trained(script, codec, workers, args) for codec in ("none", "int8"))
    require_alike(exact, compressed)
    assert exact[0][0] < 1.5
    require_fewer_bytes(exact, compressed)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("way", ["behind", "overlapping"])
def test_a_torch_loop_learns_as_much_with_a_quarter_of_the_bytes(trained, way):
    require_same_training(trained, "compressed_gradients_torch", (2, 1), [way])


@needs_keras
@pytest.mark.parametrize("where", ["host", ON_DEVICES])
def test_what_is_kept_stays_when_an_epoch_ends(trained, where, request):
    trained("compressed_gradients_owed", "int2", says=False, environment=environment_of(where, request))


@needs_keras
@needs_keras_on_torch
@pytest.mark.parametrize("where", ["host", ON_DEVICES])
def test_weights_that_are_trained_in_turns_do_not_share_what_is_kept(trained, where, request):
    trained("compressed_gradients_turns", "int2", says=False, environment=environment_of(where, request))


@needs_keras
@needs_keras_on_devices
@pytest.mark.slow
def test_keras_learns_as_much_by_gradients_that_stay_on_devices(trained, request):
    environment = environment_of("devices", request)
    exact, compressed = (
        trained("compressed_gradients_keras", codec, (2, 1), environment=environment) for codec in ("none", "int8")
    )
    require_alike(exact, compressed)


@needs_keras
@needs_keras_on_jax
@pytest.mark.slow
def test_all_do_without_where_one_rank_cannot_compress(trained, request):
    environment = environment_of("devices", request)
    exact = trained("compressed_gradients_keras", "none", environment=environment)
    found = trained("compressed_gradients_keras", "int8", environment={**environment, "PLATOON_TEST_NO_NVRTC": "1"})
    assert [bits for _, bits, _ in found] == [bits for _, bits, _ in exact]
    for host in (0, 1):
        assert "rank 1 cannot compress on its GPU (no compiler)" in trained.hosts.log(host, host)


@needs_keras
@needs_keras_on_jax
@pytest.mark.slow
def test_a_rank_that_dies_ends_a_compressed_average_of_the_others(trained, request):
    environment = {**environment_of("devices", request), "DIES": "1"}
    trained("compressed_gradients_keras", "int8", says=False, environment=environment, statuses=[3, 3])
    assert "WorkerLostError" in trained.hosts.log(0, 0)


SCRIPTS = [
    pytest.param("keras", marks=marks_of(needs_keras)),
    pytest.param("lasagne", marks=marks_of(needs_theano)),
    pytest.param("function", marks=marks_of(needs_theano)),
    pytest.param("blocks", marks=marks_of(needs_blocks)),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_training_learns_as_much_with_a_quarter_of_the_bytes(trained, tmp_path, script):
    """With several workers on a host see the loops of torch above."""
    require_same_training(trained, f"compressed_gradients_{script}", args=[tmp_path])
