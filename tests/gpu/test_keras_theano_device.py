"""Keras 2.3.1 on Theano whose weights are on GPUs: the center is there too, and NCCL averages gradients."""

import pytest
from keras_here import KERAS_2
from scripts_here import script_path

if not KERAS_2:
    pytest.skip("about Keras 2.3.1 on Theano: `make test` runs this file in .venv", allow_module_level=True)

from platoon_base.devices.discovery import cuda_devices

DEVICES = cuda_devices().names
pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device (see tests/README.md)"),
]


def test_the_center_is_where_the_weights_are(run_keras):
    """It has no memory on the host to look at; all workers end with it, and have learned."""
    run_keras(
        script_path("keras_theano_device_the_center_is_where_the_weights_are"),
        devices=(DEVICES * 2)[:2],
        center="device",
    ).require_success()


@pytest.mark.skipif(len(DEVICES) < 2, reason="needs two CUDA devices (see tests/README.md)")
def test_gradients_are_averaged_on_the_devices(run_keras):
    """By the Op of NCCL; against one process on the rows of both."""
    run_keras(
        script_path("keras_theano_device_gradients_are_averaged_on_the_devices"), devices=DEVICES[:2]
    ).require_success()
