"""The platoon command, as a user runs it."""

import json
import os
import re
import signal
import sys
import zipapp

import pytest
from scripts_here import script_path

from platoon_base.cli.commands import spread_devices
from platoon_base.worker_process.program import python_main

pytestmark = pytest.mark.base

HELLO = """
    import sys
    import numpy as np
    from platoon_base import EASGD, connect

    with connect() as worker:
        x = np.ones(10) * worker.global_rank
        worker.init_shared_params([x], EASGD())
        worker.sync_params()
        worker.barrier()
        worker.report({"answer": 42, "args": " ".join(sys.argv[1:])})
        print("hello from", worker.global_rank, "of", worker.global_size, worker.device, flush=True)
"""


@pytest.mark.promise
def test_launch_runs_the_script_on_all_workers_and_writes_the_summary(platoon, write_script, tmp_path):
    script = write_script(HELLO)
    command = "launch", "-n", 2, "--log-dir", "logs", "--summary", "out.json", script
    done = platoon(*command, "-n", "7", "--log-dir", "x").require()
    for rank, log in enumerate(done.logs):
        assert f"hello from {rank} of 2 cpu" in log
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["answer"] == 42
    assert summary["args"] == "-n 7 --log-dir x"
    assert summary["workers"] == 2
    assert summary["status"] == 0
    assert summary["stopped_by"] == "end of script"
    assert summary["seconds"] > 0
    assert "2 importing" in done.stdout, "in a pipe there must be plain progress lines"
    assert "\x1b" not in done.stdout
    assert re.search(r"answer +42", done.stdout)


@pytest.mark.promise
def test_a_file_describes_a_run(platoon, write_script, tmp_path):
    """Its rule holds where the script names none, and the command line wins over it."""
    write_script(
        """
        import sys
        import numpy as np
        from platoon_base import connect
        from platoon_base.rules import default_period

        worker = connect()
        worker.init_shared_params([np.zeros(4, np.float32)])
        worker.sync_params()
        worker.report({"size": worker.global_size, "period": default_period(), "words": " ".join(sys.argv[1:])})
        """,
        "train.py",
    )
    (tmp_path / "run.toml").write_text(
        'script = "train.py"\nworkers = 3\nsummary = "summary.json"\nevery-n-batches = 7\n[args]\nrate = 0.1\n'
    )
    platoon("launch", "--config", "run.toml", "-n", "2").require()
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (told["size"], told["period"], told["words"]) == (2, 7, "--rate 0.1")


def test_the_same_script_runs_alone_under_plain_python(run_command, write_script):
    assert run_command(sys.executable, write_script(HELLO)).stdout == "hello from 0 of 1 cpu\n"


def test_the_exit_status_is_the_worst_and_the_end_of_that_log_is_shown(platoon, write_script):
    script = write_script(
        """
        from platoon_base import connect
        if connect().global_rank == 1:
            raise RuntimeError("the reason why")
        """
    )
    done = platoon("launch", "-n", 2, script).require(1)
    assert "worker 1: exit status 1" in done.stdout
    assert "RuntimeError: the reason why" in done.stdout


@pytest.mark.parametrize(("survives", "status"), [pytest.param(True, 0, marks=pytest.mark.promise), (False, 137)])
def test_failures_can_be_allowed_but_not_of_all(platoon, write_script, survives, status):
    script = write_script(
        f"""
        import os, signal
        from platoon_base import connect
        worker = connect()
        worker.barrier()
        if worker.global_rank == 1 or not {survives}:
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert platoon("launch", "-n", 2, script).returncode == 137
    done = platoon("launch", "-n", 2, "--allow-failures", script).require(status)
    assert "worker 1: killed by SIGKILL" in done.stdout


@pytest.mark.promise
def test_the_logs_of_an_earlier_run_are_put_aside(platoon, write_script, tmp_path):
    failing = script_path("cli_the_logs_of_an_earlier_run_are_put_aside")
    assert platoon("launch", "-n", 2, "--log-dir", "logs", failing).returncode == 1
    silent = write_script("import os; os.kill(os.getpid(), 9)", "silent.py")
    done = platoon("launch", "-n", 1, "--log-dir", "logs", silent).require(137)
    assert "of the earlier run" not in done.stdout
    assert "(the log is empty)" in done.stdout
    kept = sorted(path.name for path in tmp_path.glob("logs/earlier/*/*"))
    assert kept == ["error.json", "rank0.error.json", "rank0.log", "rank1.log", "story.json"]
    assert all("of the earlier run" in path.read_text() for path in tmp_path.glob("logs/earlier/*/*"))
    assert sorted(path.name for path in tmp_path.glob("logs/[!.]*.*")) == ["error.json", "rank0.log", "story.json"]


def test_a_log_folder_is_one_jobs_while_it_runs(platoon, write_script, tmp_path):
    script = write_script(
        """
        import subprocess, sys
        platoon = [sys.executable, "-m", "platoon_base", "launch", "-n", "1", "--log-dir", "logs"]
        print(subprocess.run([*platoon, "other.py"], capture_output=True, text=True).stderr, flush=True)
        """
    )
    write_script("print('the other job')", "other.py")
    assert platoon("launch", "-n", 1, "--log-dir", "logs", script).returncode == 0
    log = (tmp_path / "logs" / "rank0.log").read_text()
    assert "another job writes its logs to logs: wait until it ends, or name another --log-dir" in log


ALONE = script_path("cli_alone")


@pytest.mark.parametrize(
    ("way", "workers", "alone", "warning"),
    [
        pytest.param(
            "meets",
            2,
            [0, 1],
            "the 2 workers shared and averaged nothing: these were 2 separate runs",
            marks=pytest.mark.promise,
        ),
        ("compares", 2, [0, 1], "the 2 workers shared and averaged nothing: these were 2 separate runs"),
        ("one shares", 3, [0, 2], "workers 0, 2 shared and averaged nothing with the others"),
        ("fails", 2, [0], "worker 0 shared and averaged nothing with the others"),
        ("forgets", 2, [0, 1], "the 2 workers shared and averaged nothing: these were 2 separate runs"),
        ("shares", 2, [], ""),
        ("copies", 2, [], ""),
        ("measures", 2, [], ""),
        ("averages", 2, [], ""),
        ("is alone", 1, [], ""),
    ],
)
def test_workers_that_share_and_average_nothing_are_named_at_the_end(platoon, tmp_path, way, workers, alone, warning):
    done = platoon("launch", "-n", workers, "--summary", "out.json", ALONE, way).require(way == "fails")
    assert json.loads((tmp_path / "out.json").read_text())["shared_nothing"] == alone
    assert warning in done.stderr
    assert ("WARNING" in done.stderr) == bool(warning)


def test_workers_that_never_join_are_separate_runs(platoon, write_script, tmp_path):
    done = platoon("launch", "-n", 2, "--summary", "out.json", write_script("print('hello')")).require()
    assert "the 2 workers shared and averaged nothing: these were 2 separate runs of the script" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["shared_nothing"] == [0, 1]


@pytest.fixture
def package(tmp_path):
    """A package whose module imports relatively, and says how it was run."""
    folder = tmp_path / "package" / "inner"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder.parent / "other.py").write_text("VALUE = 42\n")
    (folder / "__init__.py").write_text("")
    (folder / "train.py").write_text(
        "import os, sys\n"
        "from platoon_base import connect\n"
        "from ..other import VALUE\n"
        "import package.other\n"
        "print(VALUE, __name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])\n"
        "print(sys.modules['__main__'].__dict__ is globals(), package.other.VALUE, flush=True)\n"
        "if 'twice' in sys.argv and not os.path.exists('failed'):\n"
        "    open('failed', 'w').close()\n"
        "    sys.exit('once')\n"
        "connect().close()\n"
    )
    (folder / "__main__.py").write_text("from . import train\nprint(__package__, __spec__.name)\n")
    return tmp_path


def test_a_module_runs_as_under_python_m(platoon, run_command, package):
    plain = run_command(sys.executable, "-m", "package.inner.train", "-n", "7").stdout
    assert plain.startswith("42 __main__ package.inner package.inner.train ")
    platoon("launch", "-n", 2, "--log-dir", "logs", "-m", "package.inner.train", "-n", "7").require()
    assert [(package / "logs" / f"rank{rank}.log").read_text() for rank in range(2)] == [plain, plain]


@pytest.mark.promise
def test_run_takes_a_module_as_python_does(platoon, run_command, package):
    words = "-m", "package.inner.train", "-n", "7"
    assert platoon("run", *words).require().stdout == run_command(sys.executable, *words).stdout


@pytest.mark.parametrize("name", ["app", pytest.param("app.pyz", marks=pytest.mark.promise), "."])
def test_a_folder_and_an_archive_run_by_their_main_module_as_under_python(platoon, run_command, tmp_path, name):
    folder = tmp_path if name == "." else tmp_path / "app"
    folder.mkdir(exist_ok=True)
    names = "helper.X, __name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0]"
    (folder / "__main__.py").write_text(f"import sys, helper\nprint({names})\n")
    (folder / "helper.py").write_text("X = 42")
    if name.endswith("z"):
        zipapp.create_archive(folder, tmp_path / name)

    def relative(text):
        text = text.replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
        return text.replace("./__main__", "__main__")  # as Python 3.9 names it

    plain = run_command(sys.executable, name, "-n", "7").stdout
    assert plain.startswith("42 __main__")
    done = platoon("launch", "-n", 2, "--log-dir", "logs", name, "-n", "7").require()
    for rank in range(2):
        log = (tmp_path / "logs" / f"rank{rank}.log").read_text()
        assert relative(log) == relative(plain)
    assert "it is passed to the script" in done.stdout  # the -n, which the script does not mention


def test_an_option_behind_the_script_is_pointed_out_if_the_script_does_not_know_it(platoon, write_script, tmp_path):
    script = write_script("import sys\nprint(sys.argv[1:])\nseed = '--seed'")
    words = ["--report=run.html", "--seed", "3", "--epochs", "2", "--log-dir", "x"]
    done = platoon("launch", "-n", 1, "--log-dir", "logs", script, *words)
    hint = "--report and --log-dir stand behind script.py, so they are passed to the script. Options"
    assert done.stdout.count(hint) == 1, done.stdout
    assert str(words) in (tmp_path / "logs" / "rank0.log").read_text()


def test_a_module_joins_a_running_job(platoon, package):
    script = script_path("cli_a_module_joins_a_running_job")
    platoon("launch", "-n", 1, "--log-dir", "logs", script).require()
    log = (package / "logs" / "rank0.log").read_text()
    assert "42 __main__ package.inner package.inner.train" in log
    assert "'-m', 'x']" in log


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["launch", "-n", "2", "missing.py"], "there is no script 'missing.py'"),
        (["launch", "-n", "2", "."], r"there is no script '\.': this is a folder without a __main__.py"),
        (["launch", "python", "script.py"], "there is no script 'python': leave python out: workers run with"),
        (["launch", "-n", "0", "script.py"], "at least 1 worker"),
        (["launch", "-n", "2", "-D", "cpu", "cpu", "cpu", "script.py"], "both -n 2 and -D with 3 devices"),
        (["launch", "-D", "tpu0", "script.py"], "got device 'tpu0': devices are"),
        (["launch", "-D", "cuda99", "script.py"], "cuda99 does not exist here"),
        (["launch", "-n", "2", "-D", "cpu", "--center", "device", "script.py"], "cpu is not a CUDA device"),
        (["launch", "-n", "2", "--grace", "nan", "script.py"], "got --grace, .* grace=nan: it must be a number of sec"),
        (
            ["launch", "-n", "2", "--timeout", "hearbeat=1", "script.py"],
            "no timeout .hearbeat.. Did you mean heartb",
        ),
        (["launch", "--timeout", "silence=0.9", "script.py"], "Give silence at least 1, or heartbeat at most 0.225"),
        (
            ["launch", "--timeout", "silence=8", "--host-timeout", "5", "script.py"],
            "host=5 and silence=8: a host",
        ),
        (["launch", "--timeout", "silence=20", "--host-timeout", "40", "-m", "missing.module"], "there is no module"),
        (["tune", "-n", "2", "--timeout", "grace", "script.py"], "got --timeout grace: it must be a number of seconds"),
        (["launch", "--seeed", "3", "script.py"], "No such option:? '?--seeed.*(mean|options).*--seed"),
        (["launch", "-m", "missing.module"], "there is no module 'missing.module' to run"),
        (["launch", "-m", "script.py"], "there is no module 'script.py' to run"),
        (["join", "0123456789ab", "script.py"], "no running job '0123456789ab'"),
        (["join", "0123456789ab", "-D", "cuda1", "script.py"], "got -D after JOB: options come before JOB"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_the_reason(platoon, write_script, words, complaint):
    write_script(HELLO)
    done = platoon(*words).require(2)
    assert re.search(complaint, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_modules_in_the_working_directory_do_not_hide_the_standard_library(run_command, write_script, tmp_path):
    for name in ("queue.py", "secrets.py", "json.py"):
        (tmp_path / name).write_text("raise RuntimeError('python script.py does not look here')")
    (tmp_path / "src").mkdir()
    script = write_script(HELLO, "src/script.py")
    run_command(*python_main("platoon_base.cli"), "launch", "-n", "1", script).require()


def test_a_script_that_hides_a_package_is_warned_of(platoon, write_script):
    done = platoon("launch", "-n", 2, write_script("import msgspec", "msgspec.py"))
    assert "the script has the name of the package msgspec, so an import of the package finds the script" in " ".join(
        done.stdout.split()
    )
    assert done.returncode == 0, done.stdout
    for name in ("train.py", "queue.py", "my.msgspec.py"):
        assert "the name of the package" not in platoon("launch", "-n", 2, write_script("", name)).stdout


def test_the_command_is_no_matter_of_where_it_is_called(platoon, run_command, write_script, tmp_path):
    write_script("raise SystemExit('not this one')", "msgspec.py")
    platoon("jobs").require()
    gone = tmp_path / "gone"
    code = "import os, subprocess, sys; os.rmdir(os.getcwd()); raise SystemExit(subprocess.call(sys.argv[1:]))"
    gone.mkdir()
    run_command(sys.executable, "-c", code, sys.executable, "-m", "platoon_base", "jobs", cwd=gone).require()


def test_a_path_too_long_for_a_socket_is_refused(platoon, write_script, tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    done = platoon("launch", "-n", 1, write_script(HELLO), environment={"TMPDIR": str(folder)}).require(2)
    assert "set TMPDIR" in done.stderr


IGNORES_SIGNALS = script_path("cli_ignores_signals")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_even_workers_that_ignore_it_and_leaves_nothing(start_platoon, tmp_path, number):
    fifos = [tmp_path / f"ready{rank}" for rank in range(2)]  # one each: a reader that leaves breaks a second writer
    for fifo in fifos:
        os.mkfifo(fifo)
    launcher = start_platoon("launch", "-n", "2", "--grace", "0.3", IGNORES_SIGNALS, tmp_path / "ready")
    for fifo in fifos:
        fifo.read_text()  # this worker is in the middle of it
    launcher.send_signal(number)
    output, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 128 + number
    assert number.name in output
    assert "SIGKILL" in output


@pytest.mark.promise
def test_jobs_lists_the_running_job_and_who_joins_has_its_rule_its_period_and_its_timeouts(
    platoon, write_script, tmp_path
):
    late = write_script(
        """
        from platoon_base import connect
        from platoon_base.rules import default_period, default_rule
        from platoon_base.timeouts import timeout

        with connect() as worker:
            settings = default_rule(), default_period(default_rule()), timeout("wait"), timeout("answer")
            print(worker.global_rank, "of", worker.global_size, *settings)
        """,
        "late.py",
    )
    script = write_script(
        f"""
        import os, subprocess, sys
        from platoon_base import connect

        with connect() as worker:
            platoon = [sys.executable, "-m", "platoon_base"]
            jobs = subprocess.run([*platoon, "jobs"], capture_output=True, text=True, check=True).stdout
            job = os.path.basename(os.environ["PLATOON_JOB"])
            assert job in jobs
            names = ("PLATOON_RULE", "PLATOON_EVERY_N_BATCHES", "PLATOON_TIMEOUTS")
            environment = {{name: value for name, value in os.environ.items() if name not in names}}
            words = [*platoon, "join", "--timeout", "answer=7", job, {str(late)!r}]
            joined = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
            print("late:", joined.returncode, joined.stdout.strip(), joined.stderr)
        """
    )
    (tmp_path / "run.toml").write_text('rule = "LocalSGD()"\nevery-n-batches = 7\n')
    options = ["--timeout", "answer=6", "--timeout", "wait=250"]
    platoon("launch", "-n", 1, *options, "--config", "run.toml", "--log-dir", "logs", script).require()
    assert "late: 0 1 of 2 LocalSGD() 7 250.0 7.0" in (tmp_path / "logs" / "rank0.log").read_text()


@pytest.mark.promise
def test_clean_removes_what_a_dead_job_left_and_nothing_else(platoon, tmp_path):
    script = script_path("cli_clean_removes_what_a_dead_job_left")
    platoon("launch", "-n", 1, "--log-dir", "logs", script, environment={"PLATOON_NO_PREFORK": "1"})
    left = (tmp_path / "logs" / "rank0.log").read_text().split()
    folder, segments = left[0], [f"/dev/shm{name}" for name in left[1:]]
    assert all(os.path.exists(path) for path in (folder, *segments))
    listed = platoon("clean", "--dry-run").stdout
    assert all(path in listed for path in (folder, *segments))
    assert all(os.path.exists(path) for path in (folder, *segments))
    platoon("clean")
    assert not any(os.path.exists(path) for path in (folder, *segments))


UNSEEN = script_path("cli_unseen")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("removed", marks=pytest.mark.promise),
        pytest.param("apart", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount, as root")),
    ],
)
def test_a_job_lives_though_the_names_of_its_memory_are_gone_or_out_of_sight(platoon, tmp_path, how):
    """As after systemd-logind's RemoveIPC, or in two containers with one /tmp; `clean` leaves it, joining says why."""
    script = UNSEEN
    platoon("launch", "-n", 1, "--log-dir", "logs", "--summary", "s.json", script, how).require()
    assert json.loads((tmp_path / "s.json").read_text())["done"] == 1


IN_NO_FOLDER = "mkdir gone; cd gone; rmdir ../gone"
ODD_SYSTEMS = {
    "no working folder": (IN_NO_FOLDER, 2, "platoon: the working directory was removed"),
    "read-only memory": ("mount -t tmpfs -o ro none /dev/shm", 2, "cannot create shared memory in /dev/shm"),
    "no memory": ("mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9", 2,
                  "platoon: cannot create shared memory in /dev/shm"),
    "no proc": ("mount -t tmpfs none /proc", 0, "2 workers on the CPU"),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD_SYSTEMS)
def test_an_odd_system_is_no_reason_for_a_traceback(run_command, write_script, odd):
    change, status, said = ODD_SYSTEMS[odd]
    if "mount" in change and os.geteuid() != 0:
        pytest.skip("needs to mount, as root")
    apart = ["unshare", "-m"] if "mount" in change else []
    script = write_script("from platoon_base import connect\nconnect().barrier()")
    # As the script `platoon`: with -c, Python 3.13.0 fails in `import numpy` where there is no working folder.
    main = [sys.executable, write_script("from platoon_base.cli import main; main()", "main.py")]

    def run(*words):
        return run_command(*apart, "sh", "-c", f'{change}; exec "$@"', "sh", *main, *words)

    done = run("launch", "-n", 2, "-D", "cpu", script).require(status)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    cleaned = run("clean")
    assert (cleaned.returncode, cleaned.stderr) == (0, ""), cleaned


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("launch -D cuda0 cuda1 s.py", "launch -D cuda0 -D cuda1 s.py"),
        ("launch -D cuda s.py", "launch -D cuda s.py"),
        ("launch -D auto -n 2 s.py", "launch -D auto -n 2 s.py"),
        ("launch -D cpu s.py -D cuda0 cuda1", "launch -D cpu s.py -D cuda0 cuda1"),
        (
            "launch --devices opencl0:0 opencl0:1 --log-dir x s.py",
            "launch --devices opencl0:0 -D opencl0:1 --log-dir x s.py",
        ),
        ("launch -n 2 s.py cuda0 cuda1", "launch -n 2 s.py cuda0 cuda1"),
        ("launch -D cuda0 cuda1 -m a.b -D x cpu", "launch -D cuda0 -D cuda1 -m a.b -D x cpu"),
        ("launch -m -D cuda0 cuda1 -n 2 a.b", "launch -m -D cuda0 -D cuda1 -n 2 a.b"),
        ("doctor", "doctor"),
    ],
)
def test_devices_are_listed_after_one_flag(typed, read):
    assert spread_devices(typed.split()) == read.split()
