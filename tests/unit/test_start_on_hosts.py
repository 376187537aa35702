"""How engines start launchers: the commands for srun and mpirun, and how Ray divides workers among nodes."""

import os
from pathlib import Path

import pytest
from programs import run_python

from platoon_base.errors import ConfigurationError
from platoon_base.multihost.ray import Shares, shares
from platoon_base.multihost.start import command_on

pytestmark = pytest.mark.base

WORDS = ["platoon", "launch", "train.py"]


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """Make programs that write the words that they are called with, alone on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(*names, version="mpirun (Open MPI) 4.1.4"):
        for name in names:
            path = tmp_path / name
            path.write_text(
                f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi\n'
                'for word; do echo "$word"; done\necho "PLATOON_HOSTS=$PLATOON_HOSTS"\n'
            )
            path.chmod(0o755)

    return make


def test_within_an_allocation_of_slurm_it_is_srun(engines):
    engines("srun", "mpirun")
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}
    assert command_on(["a", "b"], WORDS, variables, "--hosts") == [
        "srun", "--nodelist=a,b", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8",
        "--kill-on-bad-exit=0", *WORDS,
    ]  # fmt: skip


def test_elsewhere_it_is_open_mpi_with_the_variables_that_count(engines):
    engines("srun", "mpirun")
    variables = {"PLATOON_RULE": "EASGD()", "HOME": "/home/me", "KERAS_BACKEND": "torch"}
    assert command_on(["a", "b", "c"], WORDS, variables, "--hosts") == [
        "mpirun", "-np", "3", "-H", "a:1,b:1,c:1", "--bind-to", "none", "-x", "KERAS_BACKEND", "-x", "PLATOON_RULE",
        *WORDS,
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["", "HYDRA build details: Version: 4.0"])
def test_without_an_engine_the_user_learns_what_to_start(engines, version):
    if version:
        engines("mpirun", version=version)
    with pytest.raises(ConfigurationError, match=r"--nnodes 2 --node-rank 0 --rdzv-endpoint a"):
        command_on(["a", "b"], WORDS, {}, "--hosts")


def launch(folder, *words, status=0, **environment):
    ours = ("PLATOON_", "SLURM_", "PET_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    variables = {**variables, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    return run_python("-m", "platoon_base", "launch", *words, status=status, cwd=folder, env=variables)


@pytest.mark.parametrize(
    ("words", "environment", "configuration"),
    [
        (["--hosts", "a,b"], {}, ""),
        ([], {"PLATOON_HOSTS": "a b"}, ""),
        ([], {}, "[platoon]\nhosts = a, b\n"),
        (["--hosts", "a,b"], {"PLATOON_HOSTS": "c"}, "[platoon]\nhosts = d\n"),
    ],
)
def test_the_launchers_get_the_other_options(engines, tmp_path, words, environment, configuration):
    engines("srun")
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".platoonrc").write_text(configuration)
    options = ["-n", "4", "-D", "cuda0", "cuda1", "--fail-fast", "--seed", "3"]
    done = launch(tmp_path, *words, *options, "train.py", "--hosts", "x", SLURM_JOB_ID="7", **environment)
    found = done.stdout.splitlines()
    assert found[:2] == ["--nodelist=a,b", "--nodes=2"]
    assert found[found.index("launch") :] == [
        "launch", "--workers", "4", "--devices", "cuda0", "--devices", "cuda1", "--seed", "3", "--fail-fast", "--",
        "train.py", "--hosts", "x", "PLATOON_HOSTS=localhost",
    ]  # fmt: skip


def test_a_step_that_has_been_started_starts_no_other(engines, tmp_path):
    engines("srun", "mpirun")
    (tmp_path / "train.py").write_text("")
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "a,b"}
    done = launch(tmp_path, "--rdzv-timeout", "0.1", "-n", "1", "-D", "cpu", "train.py", PLATOON_HOSTS="a,b",
                  HOME=str(tmp_path), status=2, **step)  # fmt: skip
    assert "there is no key in" in done.stderr
    done = launch(tmp_path, "--hosts", "a,b", "train.py", status=2, **step)
    assert "leave --hosts out" in " ".join(done.stderr.split())


def test_workers_are_put_on_few_nodes_with_gpus_first():
    nodes = [{"CPU": 8.0}, {"CPU": 16.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 8.0}]
    assert shares(nodes, 8) == Shares([8], "GPU")
    assert shares(nodes, 10) == Shares([8, 2], "GPU")
    assert shares(nodes, 20, "cpu") == Shares([16, 4], "CPU")
    assert shares(nodes[:1], 3) == Shares([3], "CPU")


@pytest.mark.parametrize(
    ("nodes", "arguments", "message"),
    [
        ([{"CPU": 4.0}], (5,), "got 5 workers, one CPU each, and the cluster has 4 CPUs on 1 nodes"),
        ([{"CPU": 4.0}], (1, "cuda"), "the cluster has 0 GPUs"),
        ([{"CPU": 4.0}], (0,), "at least one"),
        ([{"CPU": 4.0}], (2, "cuda1"), "got -D cuda1"),
        ([{"CPU": 4.0}], (2, "cpu", 3), "each host needs at least one"),
    ],
)
def test_what_does_not_fit_is_refused(nodes, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        shares(nodes, *arguments)
