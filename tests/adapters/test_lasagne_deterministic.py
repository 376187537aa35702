"""--deterministic with Lasagne: scripts without seeds, with dropout and shuffles, have the same bits in two runs."""

import pytest
from scripts_here import script_path

pytestmark = [pytest.mark.theano, pytest.mark.slow]
WORKERS = 3


@pytest.mark.parametrize("mode", ["gradients", "EASGD"])
def test_two_runs_without_seeds_have_the_same_bits(platoon, tmp_path, mode):
    script, runs = script_path("deterministic_lasagne"), []
    for options in ([], [], ["--seed", 1])[: 3 if mode == "EASGD" else 2]:
        done = platoon("launch", "-n", WORKERS, "--log-dir", "logs", "--deterministic", *options, script, mode)
        logs = "".join((tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(WORKERS))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        runs.append([line for line in logs.splitlines() if line.startswith("bits of rank")])
    assert len(runs[0]) == WORKERS
    assert runs[0] == runs[1]
    assert runs[0] not in runs[2:]
