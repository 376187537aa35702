"""--deterministic on CUDA devices: two runs of a script without seeds."""

import pytest
from scripts_here import script_path

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

DEVICES = [f"cuda{i}" for i in range(torch.cuda.device_count())][:2]
pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device (see tests/README.md)"),
]
TORCH, KERAS = script_path("deterministic_torch"), script_path("deterministic_keras")
RULES = ["gradients", "LocalSGD()", "EASGD(alpha=0.4)"]


@pytest.fixture
def bits(platoon):
    """Run a script on two workers, and return the lines with the hashes of their weights."""

    def run(*options, script, rule, length):
        done = platoon("launch", "-D", *(DEVICES * 2)[:2], "--tee", "all", *options, script, rule, length)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = sorted({line[line.index("bits of") :] for line in done.stdout.splitlines() if "bits of" in line})
        assert len(lines) == 2, done.stdout
        return lines

    return run


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("script", "length"), [(TORCH, 40), (KERAS, 2)], ids=["torch", "keras"])
def test_two_runs_without_seeds_have_the_same_bits(bits, script, length, rule):
    first = bits("--deterministic", script=script, rule=rule, length=length)
    assert bits("--deterministic", script=script, rule=rule, length=length) == first
    assert bits("--deterministic", "--seed", 1, script=script, rule=rule, length=length) != first
