"""--deterministic with loops of PyTorch on the CPU; on CUDA devices see `gpu/test_deterministic_gpu.py`."""

import pytest
from scripts_here import script_path

pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

pytestmark = [pytest.mark.keras, pytest.mark.loops, pytest.mark.slow]
SCRIPT = script_path("deterministic_torch")


def bits_of(done):
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted({line[line.index("bits of") :] for line in done.stdout.splitlines() if "bits of" in line})
    assert len(lines) == 2, done.stdout
    return lines


@pytest.mark.parametrize("rule", ["gradients", "EASGD(alpha=0.4)"])
def test_two_runs_without_seeds_have_the_same_bits(platoon, rule):
    launched = "launch", "-n", 2, "--tee", "all", "--deterministic"
    first = bits_of(platoon(*launched, SCRIPT, rule, 12))
    assert bits_of(platoon(*launched, SCRIPT, rule, 12)) == first
    assert rule == "gradients" or bits_of(platoon(*launched, "--seed", 1, SCRIPT, rule, 12)) != first


def test_an_operation_without_a_deterministic_form_is_refused_by_torch(platoon, write_script):
    script = write_script("import torch\nassert torch.are_deterministic_algorithms_enabled()\n")
    assert platoon("launch", "-n", 1, "--deterministic", script).returncode == 0
    assert platoon("launch", "-n", 1, script).returncode == 1
