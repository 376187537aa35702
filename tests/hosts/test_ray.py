"""A real cluster of Ray: `platoon launch --on ray`, from the command line and from Python, and nodes that are lost."""

import signal
import textwrap
import time

import engines
import pytest
from laboratory import Laboratory, problem, until
from launching_in_laboratory import MEETS, kill_launchers, said_in, script, until_said
from scripts_here import script_path

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("ray")]  # one cluster for all

WORLD = script(
    """
    worker.barrier("start")
    say("world", rank, size, worker.local_rank, worker.gather(socket.gethostname()), sys.argv[1:])
    """
)


@pytest.fixture
def nothing_left_behind():
    """Ray's own processes come and go; `cluster` looks for what jobs leave."""


@pytest.fixture(scope="module")
def ray():
    """Start Ray on two hosts, for all tests of this file: it takes half a minute."""
    if problem():
        pytest.skip(problem())
    if engines.ray_python() is None:
        pytest.skip("needs Ray: python -m venv .venv-ray; .venv-ray/bin/pip install -e '.[ray]'")
    with Laboratory(2) as laboratory, engines.RayCluster(laboratory) as cluster:
        yield cluster


@pytest.fixture
def cluster(ray, request):
    """Give the cluster; afterwards no job may have left anything."""
    ray.logs = ray.laboratory.folder / request.node.name
    yield ray
    for running in ray.commands:
        running.close()
    ray.commands.clear()
    until(lambda: not ray.leftovers(), ray.leftovers, 20)


def start(cluster, code, *options, workers=2, args=(), **kwargs):
    path = cluster.laboratory.folder / "train.py"
    path.write_text(code)
    words = ["-n", workers, "-D", "cpu", "--log-dir", cluster.logs, *options, path.name, *args]
    return cluster.start(*words, folder=path.parent, **kwargs)


def said(cluster, rank):
    return said_in(cluster.logs / f"rank{rank}.log")


def test_workers_run_on_the_nodes_that_they_need(cluster):
    running = start(cluster, WORLD, "--tee", "all", workers=3, args=["--epochs", "3"])
    assert running.wait(90) == 0, running.text()
    worlds = [said(cluster, rank)[-1] for rank in range(3)]
    assert [world[1:3] for world in worlds] == [[0, 3], [1, 3], [2, 3]]
    assert worlds[0][4][0] == "h0", "the first host is where the command was given"
    assert worlds[0][5] == ["--epochs", "3"]
    assert "3 workers on 2 hosts" in running.text()
    assert "(h1) host 1 of 2" in running.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all(cluster, number):
    running = start(cluster, script(MEETS), "--nnodes", "2")
    until_said(cluster.logs, running, "meets", timeout_s=90)
    running.send_signal(number)
    assert running.wait(40) == 128 + number, running.text()


def test_a_killed_command_leaves_no_process_and_the_next_job_removes_the_key(cluster):
    """Ray ends the actors of a driver that is gone, and the launchers end after them."""
    running = start(cluster, script(MEETS), "--nnodes", "2")
    until_said(cluster.logs, running, "meets", timeout_s=90)
    running.kill()
    running.wait()

    def left():
        return [text for text in cluster.leftovers() if not text.endswith("/key")]

    until(lambda: not left(), left, 60)
    again = start(cluster, WORLD, "--nnodes", "2")
    assert again.wait(90) == 0, again.text()


def test_a_killed_launcher_is_a_lost_host(cluster):
    running = start(cluster, script(MEETS), "--nnodes", "2")
    until_said(cluster.logs, running, "meets", timeout_s=90)
    kill_launchers(cluster.laboratory.hosts[1])
    running.until("lost host 1 (h1)")
    running.send_signal(signal.SIGINT)
    assert running.wait(40) == 130, running.text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-D", "cpu", "train.py"], "--on ray needs -n N"),
        (["-n", "2", "-D", "cuda0", "cuda1", "train.py"], "Ray chooses the devices"),
        (["-n", "2", "-D", "cuda0", "train.py"], "Ray chooses the devices"),
        (["-n", "2", "--node-rank", "1", "train.py"], "leave --node-rank out"),
    ],
)
def test_what_cannot_be_is_refused(cluster, words, message):
    running = cluster.start(*words)
    assert running.wait(60) == 2
    assert message in " ".join(running.text().split())


def test_it_is_a_function_too(cluster):
    code = """
    from platoon_base.multihost.ray import launch
    lines = []
    status = launch("train.py", ["x"], workers=2, device="cpu", hosts=2, options=["--log-dir", LOGS], show=lines.append)
    assert any("2 workers on 2 hosts" in line for line in lines), lines
    print("status", status)
    """
    folder = cluster.laboratory.folder
    (folder / "train.py").write_text(WORLD)
    (folder / "driver.py").write_text(f"LOGS = {str(cluster.logs)!r}\n" + textwrap.dedent(code))
    text = cluster.laboratory.hosts[0].run(
        cluster.python, "driver.py", environment=cluster.environment, folder=folder, timeout_s=90
    )
    assert text.split() == ["status", "0"]


SHARES = script_path("ray_shares").read_text()


def test_a_node_that_comes_back_takes_part_again(cluster):
    """Its launcher is started again, and its workers take the center. Restarts a node, as the next test does."""
    host = cluster.laboratory.hosts[1]
    running = start(cluster, SHARES, "--nnodes", "2", "--allow-failures")
    until_said(cluster.logs, running, "meets", timeout_s=90)
    (cluster.logs / "rank1.log").unlink()
    host.kill()
    running.until("lost host 1 (h1)")
    running.until("Ray reports that ")
    host.boot()
    cluster.add(host)
    running.until("(host 1) has returned", 120)
    running.until("host 1 (h1) has returned with workers 1", 60)
    until_said(cluster.logs, running, "meets", timeout_s=90)
    assert said(cluster, 1)[0][1] < 6.5, "a center of its own would begin with 7"
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130, running.text()


def test_a_job_whose_workers_need_each_other_goes_on_without_a_lost_node(cluster):
    """The next job has both again."""
    host = cluster.laboratory.hosts[1]
    running = start(cluster, script(MEETS), "--nnodes", "2")
    until_said(cluster.logs, running, "meets", timeout_s=90)
    began = time.monotonic()
    host.kill()
    running.until("lost host 1 (h1)")
    assert time.monotonic() - began < 4
    running.until("Ray reports that ", 60)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130, running.text()
    host.boot()
    cluster.add(host)
    running = start(cluster, WORLD, "--nnodes", "2")
    assert running.wait(120) == 0, running.text()
    assert said(cluster, 0)[-1][4] == ["h0", "h1"]
