"""The command platoon-launcher, its configuration, and `platoon launch` by the same configuration."""

import os
import re
import signal
import sys
import textwrap

import pytest
from by_hand import end, free_port, until
from scripts_here import script_path

from platoon_base.job.files import running

pytestmark = pytest.mark.base

LAUNCHER = [sys.executable, "-c", "from platoon_base.cli.platoon_launcher import main; raise SystemExit(main())"]

WORKER = script_path("platoon_launcher_worker").read_text()

CONTROLLER = script_path("platoon_launcher_controller").read_text()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Give the processes a home without the user's own configuration, and a folder to start from."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("PLATOON_DEVICES", "PLATOON_HOSTS", "PLATOONRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "demo_worker.py").write_text(WORKER)
    return tmp_path / "home"


@pytest.fixture
def launcher(run_command):
    def run(*words, **environment):
        return run_command(*LAUNCHER, *words, environment=environment)

    return run


def logs_of(tmp_path):
    (folder,) = (tmp_path / "PLATOON_LOGS" / "demo").iterdir()
    return [path.read_text() for path in sorted(folder.glob("rank*.log"))]


def test_an_experiment_without_a_controller_of_its_own(launcher, tmp_path):
    done = launcher("demo", "-D", "cpu", "cpu", "cpu", "-w", "--text 'two words'").require()
    assert "3 workers on the CPU" in done.stdout
    for rank, log in enumerate(logs_of(tmp_path)):
        assert f"worker {rank} of 3 on cpu 'two words'" in log
    assert running() == []


@pytest.mark.promise
def test_an_experiment_with_a_controller(launcher, tmp_path):
    (tmp_path / "demo_controller.py").write_text(CONTROLLER)
    controller_args = f"--greeting 'good day' --control-port {free_port()}"
    launcher("demo", "-D", "cpu", "cpu", "-c", controller_args, "-w", "--text ask").require()
    for rank, log in enumerate(logs_of(tmp_path)):
        assert f"['hello', {rank}, 1, 'good day']" in log


@pytest.mark.parametrize("own_controller", [False, True])
def test_the_cause_of_a_failure_and_warnings_are_shown_once(launcher, tmp_path, own_controller):
    words = ["demo", "-D", "cpu", "cpu", "-w", "--text=fail"]
    if own_controller:
        (tmp_path / "demo_controller.py").write_text(CONTROLLER)
        words += ["-c", f"--control-port={free_port()}"]
    done = launcher(*words).require(1)
    assert done.stdout.count("worker 1 failed: RuntimeError: the reason why\n  at ") == 1, done.stdout
    assert done.stdout.count("Traceback") == 1
    assert done.stdout.count("WARNING, worker 1: of a worker\n") == 1
    shown = " ".join((done.stdout + done.stderr).split())
    assert re.search(r"rank 1 ended[^:]*: RuntimeError: the reason why \(demo_worker.py:\d+\), see /", shown), shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "required: EXPERIMENT"),
        (["nothing", "-D", "cpu"], "no script 'nothing_worker.py'"),
        (["demo_worker.py"], "pass the experiment's name, 'demo', for demo_worker.py"),
        (["demo", "--what"], "unrecognized arguments"),
        (["demo", "-D", "gpu7"], "got device 'gpu7': gpu7 is now called cuda7"),
        (["demo", "-D", "cpu", "-c", "--nothing=1"], "unrecognized arguments: --nothing=1"),
        (["demo", "-D", "cpu", "-w", "--text 'x"], 'got -w "--text \'x", in which a quote is not closed'),
        (["demo", "-D", "cpu", "-c", "--greeting 'x"], 'got -c "--greeting \'x", in which a quote is not closed'),
        (["demo", "-D", "cpu", "-H", "elsewhere"], "-H names host elsewhere, and this command runs only on this host"),
    ],
)
def test_wrong_arguments_are_exit_status_2(launcher, tmp_path, words, complaint):
    done = launcher(*words).require(2)
    assert complaint in done.stderr
    assert not (tmp_path / "PLATOON_LOGS").exists()


def test_errors_of_the_system_are_exit_status_3_and_unknown_ones_4(run_command, tmp_path):
    (tmp_path / "demo_controller.py").write_text(CONTROLLER)
    broken = "import subprocess, platoon_base.cli.platoon_launcher as m\n"
    code = broken + "def fail(*args, **kwargs):\n    raise {}('broken here')\nsubprocess.Popen = fail\n"
    for error, status in (("OSError", 3), ("KeyError", 4)):
        text = code.format(error) + "raise SystemExit(m.main(['demo', '-D', 'cpu']))"
        done = run_command(sys.executable, "-c", text).require(status)
        assert "broken here" in done.stderr


def test_a_log_folder_that_cannot_be_made_is_exit_status_3(launcher, tmp_path):
    (tmp_path / "PLATOON_LOGS").write_text("")
    done = launcher("demo", "-D", "cpu").require(3)
    assert "PLATOON_LOGS" in done.stderr


def test_arguments_come_before_the_environment_and_that_before_files(launcher, home, tmp_path):
    host = os.uname().nodename
    (home / ".platoonrc").write_text(f"[devices]\nother = cuda0,cuda1\n{host} = cpu,cpu,cpu\n")
    named = tmp_path / "more.ini"
    named.write_text("[devices]\nlocalhost = cpu\n")

    def workers(*words, **environment):
        done = launcher("demo", *words, **environment).require()
        return done.stdout.splitlines()[0]

    assert "1 worker on the CPU" in workers("-D", "cpu", PLATOON_DEVICES="cpu,cpu")
    assert "2 workers on the CPU (PLATOON_DEVICES)" in workers(PLATOON_DEVICES="cpu,cpu")
    assert f"3 workers on the CPU ({home}/.platoonrc, {host.lower()})" in workers(PLATOONRC=f"{tmp_path}/none")
    silent, more = tmp_path / "silent.ini", tmp_path / "two.ini"
    silent.write_text("[devices]\nother = cuda0\n")
    more.write_text("[devices]\nlocalhost = cpu,cpu\n")
    for files, count, which in (([named, more], "2 workers", more), ([more, named, silent], "1 worker", named)):
        assert f"{count} on the CPU ({which}, localhost)" in workers(PLATOONRC=":".join(map(str, files)))
    (tmp_path / ".platoonrc").write_text(f"[platoon]\nhosts = {host}\n[devices]\n{host} = cpu cpu\n")
    assert "2 workers on the CPU (.platoonrc" in workers()
    whole = host if "." in host else f"{host}.example.org"
    (tmp_path / ".platoonrc").write_text(f"[platoon]\nhosts = {whole}\n[devices]\n{whole} = cpu cpu cpu cpu\n")
    assert "4 workers on the CPU (.platoonrc" in workers()
    assert f"1 worker on the CPU ({named}, localhost)" in workers(PLATOONRC=f"{tmp_path}/none:{named}")
    (tmp_path / ".platoonrc").write_text("[platoon]\nhosts =\n[devices]\nlocalhost =\n")  # says nothing
    assert f"3 workers on the CPU ({home}/.platoonrc, {host.lower()})" in workers(PLATOON_DEVICES=",")


@pytest.mark.parametrize(
    ("text", "environment", "complaint"),
    [("no section", {}, "cannot read .platoonrc"), ("[devices]\nlocalhost = cpu, tpu0\n", {}, "got device 'tpu0'")],
)
def test_a_configuration_that_cannot_work_is_refused(launcher, platoon, tmp_path, text, environment, complaint):
    (tmp_path / ".platoonrc").write_text(text)
    for done in (launcher("demo", **environment), platoon("launch", "demo_worker.py", environment=environment)):
        assert done.returncode == 2, done.stdout + done.stderr
        assert complaint in done.stderr


def test_platoon_launch_reads_the_same_configuration(platoon, tmp_path):
    script = tmp_path / "count.py"
    script.write_text("from platoon_base import connect\nprint('worker of', connect().global_size)\n")
    assert (
        "3 workers on the CPU (PLATOON_DEVICES)"
        in platoon("launch", script, environment={"PLATOON_DEVICES": "cpu,cpu,cpu"}).stdout
    )
    for words in (["-n", "2", "-D", "cpu"], ["-D", "cpu", "cpu"]):
        done = platoon("launch", *words, script, environment={"PLATOON_DEVICES": "cpu"})
        assert "2 workers on the CPU" in done.stdout, done.stdout + done.stderr
    (tmp_path / ".platoonrc").write_text("[devices]\nlocalhost = cpu,cpu\n")
    assert "2 workers on the CPU (.platoonrc, localhost)" in platoon("launch", script).stdout


def test_a_signal_to_the_launcher_ends_controller_and_workers(start, tmp_path):
    (tmp_path / "demo_controller.py").write_text(CONTROLLER)
    (tmp_path / "demo_worker.py").write_text(
        WORKER.replace("sys.exit(", "print('waits', flush=True)\nimport signal\nsignal.pause()\nsys.exit(")
    )
    text = textwrap.dedent("""
        import sys
        from platoon_base.cli.platoon_launcher import main
        sys.exit(main())
    """)
    process = start(text, "demo", "-D", "cpu", "cpu", "-c", f"--control-port={free_port()} --greeting=x")
    until(process, "workers on the CPU")
    (folder,) = (tmp_path / "PLATOON_LOGS" / "demo").iterdir()
    logs = [folder / f"rank{rank}.log" for rank in range(2)]
    while not all(log.exists() and "waits" in log.read_text() for log in logs):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    end(process, 1)
    assert running() == []
