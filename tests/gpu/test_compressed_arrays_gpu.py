"""Averaged gradients of Theano with --hosts-compression on CUDA devices, by NCCL."""

import pytest
from devices_here import DEVICES, WHY_NOT
from hosts_on_gpus import HostsOnGpus

pytestmark = [
    pytest.mark.theano,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"needs two CUDA devices (see tests/README.md): {WHY_NOT}"),
]


def test_lasagne_learns_as_much_with_a_quarter_of_the_bytes(tmp_path):
    hosts = HostsOnGpus(tmp_path)
    try:
        hosts.require_same_training("compressed_gradients_lasagne", [[name] for name in DEVICES[:2]])
    finally:
        hosts.close()
