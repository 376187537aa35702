"""What can be wrong with the hosts of a job: an error on the host at fault, one on the first host, and nothing left."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from laboratory import ROOT
from launching_in_laboratory import KEY, MEETS, PORT, Job, launch_words, script
from scripts_here import script_path

QUICK = script('worker.barrier("start")\nsay("together", size)\n')
SHORT = ("--rdzv-timeout", "6")


@pytest.fixture
def job(laboratory):
    """Make a job of two hosts whose launchers the test starts."""
    made = Job(laboratory, QUICK, (1, 1))
    made.write_key(*laboratory.hosts)
    yield made
    made.close()


def launch_both(job, *options, first=None, second=None):
    """Start both launchers, the second with other settings; returns their exit statuses."""
    job.launchers = [job.launch(0, *options, **(first or {})), job.launch(1, *options, **(second or {}))]
    return job.wait(40)


def test_two_hosts_with_one_rank(make_laboratory):
    """The second to come is refused, and the job begins once the right one is there."""
    there = make_laboratory(3)
    job = Job(there, QUICK, (1, 1, 1))
    job.write_key(*there.hosts)
    first, second = job.launch(0), job.launch(1)
    third = job.launch(2, rank=1)
    job.launchers = [first, second, third]
    until_one_ends = [second, third]
    deadline = time.monotonic() + 30
    while all(each.poll() is None for each in until_one_ends):
        assert time.monotonic() < deadline, job.text()
        time.sleep(0.01)
    refused, stays = (second, third) if second.poll() is not None else (third, second)
    assert refused.poll() == 2
    assert "pass a different --node-rank on each host" in " ".join(refused.text().split())
    first.until("refused")
    name = "h1" if refused is second else "h2"
    assert f"{name} (process" in job.output(0)
    host = job.laboratory.hosts[2 if stays is second else 1]
    words = ["--nnodes", 3, "--node-rank", 2, "-n", 1, "-D", "cpu", "--rdzv-endpoint", "10.77.0.1"]
    right = host.start(*launch_words(*words, "--log-dir", there.folder / "right", job.script))
    assert [first.wait(), stays.wait(), right.wait()] == [0, 0, 0], job.text()


def test_another_version(job):
    """A copy of this package that says another version."""
    copy = job.laboratory.folder / "other"
    shutil.copytree(ROOT / "platoon_base", copy / "platoon_base", ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "platoon_base" / "__init__.py"
    text = path.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("__version__")]
    path.write_text(text.replace(line, '__version__ = "0.0.1"'))
    assert launch_both(job, *SHORT, second={"environment": {"PYTHONPATH": str(copy)}}) == [2, 2], job.text()
    for host in (0, 1):
        assert "has platoon-plugins 0.0.1, and host 0 has" in job.output(host)
        assert "install one version on all hosts" in job.output(host)


NOWHERE = "10.77.0.77"
# What each launcher is given besides, and what each says.
MISTAKES = {
    "no script": ({}, {"script": "missing.py"}, "", "missing.py"),
    "a name without an address": (
        {},
        {"endpoint": "no-such-host"},
        "host 1 of 2 did not join at",
        "'no-such-host' of --rdzv-endpoint does not resolve",
    ),
    "an address of nobody": ({}, {"endpoint": NOWHERE}, "host 1 of 2 did not join at", f"no answer from {NOWHERE}"),
    "the first listens elsewhere": ({"endpoint": "10.77.0.2"}, {}, "10.77.0.2", "no answer from"),
    "each finds itself": ({"endpoint": "localhost"}, {"endpoint": "localhost"}, "did not join", "no answer from"),
    "two first hosts": ({}, {"rank": 0}, "", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_one_host_is_named_and_no_host_goes_on_by_itself(job, mistake):
    first, second, *said = MISTAKES[mistake]
    assert launch_both(job, "--rdzv-timeout", "2", first=first, second=second) == [2, 2], job.text()
    for host in (0, 1):
        assert said[host] in job.output(host)
        assert "Traceback" not in job.output(host)
        assert job.said(host) == []


def test_the_key_is_on_no_command_line_and_in_no_log(laboratory):
    job = Job(laboratory, script(MEETS), (1, 1))
    job.write_key(*laboratory.hosts)
    job.launchers = [job.launch(0), job.launch(1)]
    job.until_said("meets")
    for host in laboratory.hosts:
        for pid, words in host.processes().items():
            assert KEY not in words
            assert KEY not in Path(f"/proc/{pid}/environ").read_text(errors="replace")
        folders = [path for path in host.outside("/tmp").iterdir() if not ROOT.is_relative_to(f"/tmp/{path.name}")]
        for path in (below for folder in folders for below in folder.rglob("*")):
            if path.is_file() and path.name != "key" and path.stat().st_mode & 0o077:
                assert KEY not in path.read_text(errors="replace"), path
    job.launchers[1].kill()
    job.launchers[0].kill()
    job.wait()
    assert KEY not in job.text()
    job.close()


# Connects again and again with what is no handshake, and leaves connections open.
GARBAGE = script_path("bad_input_garbage")


def test_garbage_and_a_flood_leave_the_job_running(make_laboratory):
    """From a machine of the network that is no host of the job, before and while the job runs."""
    there = make_laboratory(3)
    job = Job(there, script(MEETS), (1, 1))
    job.write_key(*there.hosts[:2])
    job.launchers = [job.launch(0)]
    stranger = there.hosts[2].start(sys.executable, GARBAGE, "10.77.0.1", PORT)
    stranger.until("up")
    job.launchers.append(job.launch(1))
    job.until_said("meets")
    stranger.until("tried")
    stalls = [line for rank in (0, 1) for line in job.said(rank) if line[0] == "stalled"]
    assert max((line[1] for line in stalls), default=0) < 1
    assert [launcher.poll() for launcher in job.launchers] == [None, None]
    job.launchers[0].send_signal(2)
    assert job.wait(20) == [130, 130], job.text()
    assert len(job.launchers[0].text()) < 10_000, "a flood floods no log"
    stranger.close()


def test_a_scan_of_all_ports_leaves_the_job_running(make_laboratory):
    """Links between workers listen too."""
    there = make_laboratory(3)
    job = Job(there, script(MEETS.replace('worker.barrier("again", timeout_s=60)',
                                          'worker.all_reduce(np.ones(1000, np.float32))')), (1, 1))  # fmt: skip
    job.write_key(*there.hosts[:2])
    job.launchers = [job.launch(0), job.launch(1)]
    job.until_said("meets")
    for host in there.hosts[:2]:
        ports = [line.split()[1] for line in Path(f"/proc/{host.init}/net/tcp").read_text().splitlines()[1:]]
        ports = {int(port.split(":")[1], 16) for port in ports}
        for port in ports:
            there.hosts[2].run(sys.executable, SCAN, host.address, port)
    job.launchers[0].send_signal(2)
    assert job.wait(20) == [130, 130], job.text()


SCAN = script_path("bad_input_scan")


def test_clocks_an_hour_apart(job):
    """Only monotonic clocks are compared, each with itself; the library sees another wall clock on one host."""
    shifted = job.laboratory.folder / "shifted" / "sitecustomize.py"
    shifted.parent.mkdir()
    shifted.write_text("import time\nreal = time.time\ntime.time = lambda: real() + 3600\n")
    variables = {"PYTHONPATH": os.pathsep.join(map(str, [shifted.parent, ROOT, ROOT / "tests" / "helpers"]))}
    job.launchers = [job.launch(0), job.launch(1, environment=variables)]
    assert job.wait() == [0, 0], job.text()
    assert [job.said(rank)[-1] for rank in (0, 1)] == [["together", 2]] * 2


def test_monotonic_clocks_a_day_apart(job):
    """As of hosts that were booted at different times: a time namespace has its own."""
    words = launch_words("--nnodes", 2, "--node-rank", 1, "-n", 1, "-D", "cpu", "--rdzv-endpoint", "10.77.0.1",
                         "--log-dir", job.laboratory.folder / "logs1", job.script)  # fmt: skip
    host = job.laboratory.hosts[1]
    probe = host.start("unshare", "--time", "--monotonic", 86400, "true")
    if probe.wait():
        pytest.skip(f"needs time namespaces: {probe.text()}")
    job.script.write_text(script(MEETS + 'say("clock", time.monotonic())'))
    a_day_later = ["unshare", "--time", "--monotonic", 86400, "--fork", "--kill-child"]
    job.launchers = [job.launch(0), host.start(*a_day_later, *words)]
    job.until_said("meets")
    job.launchers[0].send_signal(2)
    assert job.wait(20) == [130, 130], job.text()
    assert "no heartbeat" not in job.output(0) + job.output(1)


def test_an_ipv6_address_will_do(job):
    for index, host in enumerate(job.laboratory.hosts):
        host.run("ip", "addr", "add", f"fd00:77::{index + 1}/64", "dev", "eth0", "nodad")
    endpoint = "[fd00:77::1]:29401"
    found = launch_both(job, *SHORT, first={"endpoint": endpoint}, second={"endpoint": endpoint})
    assert found == [0, 0], job.text()


def test_the_address_that_is_taken_is_no_loopback(job):
    """Debian gives a host's own name the address 127.0.1.1."""
    job.laboratory.hosts_file.write_text("127.0.0.1 localhost\n127.0.1.1 h0\n10.77.0.2 h1\n")
    job.launchers = [job.launch(0, *SHORT, endpoint="h0"), job.launch(1, *SHORT, endpoint="10.77.0.1")]
    assert job.wait() == [0, 0], job.text()
