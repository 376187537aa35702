"""--deterministic: the same bits in two runs, and after a resume."""

import contextlib
import os
import shutil
import subprocess

import psutil
import pytest
from scripts_here import script_path
from watching import clean_up, until

from platoon_base.checkpoints.files import newest_in, read_checkpoint
from platoon_base.cli.deterministic import deterministic_environment
from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import LIMITED_THREADS, THREAD_VARIABLES

pytestmark = [pytest.mark.base, pytest.mark.slow]

LOOP = script_path("deterministic_loop")
WAITING = ["LocalSGD()", "SlowMo()", "DiLoCo()"]
NOT_WAITING = ["EASGD(alpha=0.3)", "ASGD()", "CenterMomentum()", "GoSGD(probability=0.5)"]
WORKERS = 3  # of two the sum is the same in any order


@pytest.fixture
def bits(platoon, tmp_path):
    """Run the loop, and return the lines with the hashes of all workers' values and of the center."""

    def run(*options, rule, period=4, steps=32, busy=-1, workers=WORKERS):
        words = LOOP, rule, period, steps, *([busy] * (busy >= 0))
        logs = platoon("launch", "-n", workers, "--log-dir", "logs", *options, *words).require().logs
        return [line for log in logs for line in log.splitlines() if line.startswith("bits of rank")]

    return run


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(WAITING[0], marks=pytest.mark.promise),
        *(NOT_WAITING[0], NOT_WAITING[-1]),
        *(pytest.param(rule, marks=pytest.mark.rare) for rule in (*WAITING[1:], *NOT_WAITING[1:-1])),
    ],
)
def test_two_runs_have_the_same_bits_whichever_worker_is_slow(bits, rule):
    runs = [bits("--deterministic", rule=rule, busy=busy) for busy in (0, 2)]
    assert len(runs[0]) == WORKERS
    assert runs[0] == runs[1]
    assert bits("--deterministic", "--seed", 1, rule=rule) != runs[0]


@pytest.mark.parametrize("rule", ["EASGD(alpha=0.3)", "LocalSGD()"])
def test_workers_that_synchronize_unequally_often_do_not_wait_forever(platoon, write_script, tmp_path, rule):
    text = LOOP.read_text().replace("step % period == 0", "step % (period + worker.global_rank) == 0")
    script = write_script(text)
    outputs = []
    for number in range(2):
        options = "--deterministic", "--checkpoint-every", "0.02", "--resume", tmp_path / f"kept{number}"
        done = platoon("launch", "-n", WORKERS, "--tee", "all", *options, script, rule, 3, 30).require()
        outputs.append(sorted(line.split("bits of", 1)[1] for line in done.stdout.splitlines() if "bits of" in line))
        about = read_checkpoint(newest_in(tmp_path / f"kept{number}")).about
        assert [about.positions[rank].steps for rank in range(WORKERS)] == [30, 28, 30]  # of the end
    assert len(outputs[0]) == WORKERS
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "rule", [NOT_WAITING[0], *(pytest.param(rule, marks=pytest.mark.rare) for rule in NOT_WAITING[1:])]
)
def test_two_runs_that_go_on_from_one_checkpoint_have_the_same_bits(bits, tmp_path, rule):
    saving = "--deterministic", "--checkpoint-every", "0.02", "--resume"
    bits(*saving, tmp_path / "kept", rule=rule, steps=16)
    assert positions(tmp_path / "kept") == 16
    resumed = []
    for busy in (0, 2):
        copy = tmp_path / f"copy{busy}"
        shutil.copytree(tmp_path / "kept", copy)
        resumed.append(bits("--deterministic", "--resume", copy, rule=rule, steps=32, busy=busy))
    assert resumed[0] == resumed[1]


@pytest.mark.parametrize("rule", ["LocalSGD()", "DiLoCo()"])
def test_a_killed_job_that_is_resumed_ends_with_the_bits_of_one_that_was_not(bits, start_platoon, tmp_path, rule):
    period, steps = 5, 400
    whole = bits("--deterministic", rule=rule, period=period, steps=steps)
    kept = tmp_path / "kept"
    options = "--deterministic", "--checkpoint-every", "0.02", "--resume", str(kept), "--log-dir", "first"
    words = "launch", "-n", 3, *options, LOOP, rule, period, steps, 1
    launcher = start_platoon(*words, stdout=subprocess.DEVNULL)
    try:
        until(lambda: launcher.poll() is not None or positions(kept) >= 50)
    finally:
        for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
            process.kill()
    launcher.wait()
    assert 50 <= positions(kept) < steps
    assert bits("--deterministic", "--resume", kept, rule=rule, period=period, steps=steps) == whole
    clean_up()


def test_a_round_without_a_worker_that_died_is_in_no_checkpoint(platoon, write_script, tmp_path):
    text = """
import os
import signal

import numpy as np

from platoon_base import LocalSGD, connect
from platoon_base.errors import PlatoonError

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
worker = connect()
w = np.zeros(1000, "float32")
worker.init_shared_params([w], LocalSGD())
for step in range(1, 4):
    w += 1
    worker.progress(steps=1, epoch=1)
    if step == 3 and worker.global_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        worker.sync_params()
    except PlatoonError:
        break
"""
    options = "--deterministic", "--checkpoint-every", "0.02", "--resume", "kept"
    platoon("launch", "-n", WORKERS, *options, write_script(text)).require(137)
    assert positions(tmp_path / "kept") < 3


@pytest.mark.parametrize(("rule", "bound"), [("EASGD(alpha=0.3)", True), ("LocalSGD()", False)])
def test_workers_that_need_each_other_go_on_at_one_position_unless_rounds_have_kept_them_together(
    platoon, write_script, tmp_path, rule, bound
):
    text = LOOP.read_text().replace("\nrule,", "\nworker.advanced.meet('all', binds=True)\nrule,")
    options = "--deterministic", "--checkpoint-every", 60, "--resume", "kept"
    assert platoon("launch", "-n", 2, *options, write_script(text), rule, 4, 8).returncode == 0
    assert read_checkpoint(newest_in(tmp_path / "kept")).about.bound is bound


def positions(folder):
    """Return the position that all workers have in the newest checkpoint, 0 if there is none."""
    with contextlib.suppress(FileNotFoundError, ConfigurationError):
        about = read_checkpoint(newest_in(folder)).about
        steps = {position.steps for position in about.positions.values()}
        assert len(steps) == 1, steps
        return steps.pop()
    return 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--max-restarts", 1], "continue with --checkpoint-every and --resume"),
        (["--allow-failures"], "leave --allow-failures out"),
        (["--data-server", str(LOOP)], "the server sends each mini-batch to the worker that asks first"),
        (["--nnodes", 2, "--node-rank", 0, "--rdzv-endpoint", "127.0.0.1"], "run on one host"),
        (["--center", "device", "--checkpoint-every", 1], "a center on GPUs is saved at no fixed time"),
    ],
)
def test_options_that_make_two_runs_differ_are_refused(platoon, options, complaint):
    refused = platoon("launch", "-n", 2, "--deterministic", *options, LOOP, "ASGD()", 4, 12).require(2)
    assert complaint in refused.stderr


def test_nobody_joins_a_deterministic_job(platoon, write_script, tmp_path):
    """Neither by the command nor by the environment."""
    text = """
import os
import subprocess
import sys

from platoon_base import connect

worker = connect()
if worker.is_leader:
    environment = {name: value for name, value in os.environ.items() if name != "PLATOON_RANK"}
    by_command = ["-m", "platoon_base", "join", os.environ["PLATOON_JOB"], sys.argv[1]]
    for words in (by_command, ["-c", "from platoon_base import connect; connect()"]):
        joined = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, env=environment)
        print("joined with", joined.returncode, joined.stderr)
worker.barrier()
"""
    late = write_script("print('no worker is started')\n", "late.py")
    log = platoon("launch", "-n", 2, "--deterministic", "--log-dir", "logs", write_script(text), late).require().logs[0]
    assert "joined with 2 platoon: this job was launched with --deterministic" in log
    assert "joined with 1" in log
    assert log.count("launch it with one more worker") == 2
    assert "no worker is started" not in log


@pytest.mark.promise
def test_the_number_of_threads_is_fixed_and_that_of_the_run_that_is_resumed(platoon, tmp_path, monkeypatch):
    """Cores and quotas do not count: with another number sums are added in another order."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    fixed = deterministic_environment({}, 0)
    assert [fixed[name] for name in (*LIMITED_THREADS, "TF_NUM_INTRAOP_THREADS")] == ["1"] * 4
    assert "xla_cpu_multi_thread_eigen=false" in fixed["XLA_FLAGS"]
    assert "OMP_NUM_THREADS" not in deterministic_environment({"BLIS_NUM_THREADS": "1"}, 0)
    assert deterministic_environment({}, 0, "MKL_NUM_THREADS=1")["MKL_NUM_THREADS"] == "1"
    many = str(len(os.sched_getaffinity(0)) + 1)
    with pytest.raises(ConfigurationError, match=f"got --deterministic with OMP_NUM_THREADS={many} and "):
        deterministic_environment({"OMP_NUM_THREADS": many}, 0)
    launched = "launch", "-n", 2, "--deterministic", "--checkpoint-every", "0.02", "--resume", "kept"
    done = platoon(*launched, LOOP, "ASGD()", 4, 8).require()
    one = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1"
    assert f"each worker uses {one}; another number" in done.stdout
    assert read_checkpoint(newest_in(tmp_path / "kept")).about.threads == one
    refused = platoon(*launched, LOOP, "ASGD()", 4, 16, environment={"OPENBLAS_NUM_THREADS": "1"})
    assert refused.returncode != 0
    assert f"with OPENBLAS_NUM_THREADS=1, and the checkpoint is of a run with {one}" in refused.stdout + refused.stderr


def test_what_a_worker_finds_in_its_environment(platoon, write_script, tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    names = ["PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "TF_DETERMINISTIC_OPS", "NCCL_ALGO", "XLA_FLAGS"]
    script = write_script(f"import os\nfor name in {names}: print(name, os.environ.get(name))\n")
    environment = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "NCCL_ALGO": "Tree"}
    (tmp_path / "run.toml").write_text(f"deterministic = true\nworkers = 1\nscript = '{script}'\n")
    done = platoon("launch", "--config", "run.toml", "--log-dir", "logs", environment=environment).require()
    for line in (
        "PYTHONHASHSEED 0",
        "CUBLAS_WORKSPACE_CONFIG :4096:8",
        "TF_DETERMINISTIC_OPS 1",
        "NCCL_ALGO Tree",
        "XLA_FLAGS --xla_cpu_enable_fast_math=false --xla_gpu_deterministic_ops=true "
        "--xla_cpu_multi_thread_eigen=false",
    ):
        assert line in done.logs[0].splitlines()
