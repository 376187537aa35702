"""Jobs on several hosts, by real launchers with real workers; the hosts are folders of this machine.

tests/hosts has the same in namespaces, with links that are cut and engines that start the launchers.
"""

import contextlib
import json
import os
import signal
import socket
import time

import psutil
import pytest
from laboratory import until
from scripts_here import behind, script_path

from tests.helpers.launching_hosts import Hosts

pytestmark = pytest.mark.base


def script(text):
    return behind("hosts_preamble", text)


def test_logs_say_on_which_host_the_others_are(hosts):
    code = script('say("here")\nwhile not worker.should_stop:\n    time.sleep(0.01)')
    for host in (0, 1):
        hosts.start(code, host=host, workers=2 - host)
    for host, rank in ((0, 0), (0, 1), (1, 2)):
        hosts.until(f"logs{host}/rank{rank}.log", "here")
    for host, own, away in ((0, ("[0]", "[1]"), "rank 2 are on host 1"), (1, ("[2]",), "ranks 0, 1 are on host 0")):
        told = hosts.command(host, "logs")
        assert all(f'{rank} ["here"]' in told for rank in own), told
        assert f"the logs of {away}" in told
    assert "the logs of rank 2 are on host 1" in hosts.command(0, "logs", "--rank", "2")
    stopped = hosts.command(1, "stop")
    assert hosts.wait() == [130, 130], stopped


def test_workers_of_all_hosts_are_one_world(hosts):
    code = script_path("launching_together")
    assert hosts.run(code, "--summary", "summary.json", workers=(2, 1, 3)) == [0, 0, 0], hosts.output(0)
    of = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 2}
    seen = [{word: rest for word, *rest in hosts.said(rank, host)} for rank, host in of.items()]
    assert [each["place"][:4] for each in seen] == [
        [0, 6, 0, 2], [1, 6, 1, 2], [2, 6, 0, 1], [3, 6, 0, 3], [4, 6, 1, 3], [5, 6, 2, 3],
    ]  # fmt: skip
    for each in seen:
        assert [rank for rank, _ in each["gathered"][0]] == list(range(6))
        assert each["metrics"] == [2.5]
        assert each["sum"] == [[0.0, 15.0, 30.0]]
    assert sorted(row for each in seen for row in each["shard"][0]) == list(range(23))
    summary = json.loads((hosts.folder / "summary.json").read_text())
    assert [summary[f"by_{rank}"] for rank in range(6)] == list(range(6))
    assert "6 workers on 3 hosts" in hosts.output(0)
    assert "workers 3 to 5" in hosts.output(2)


def test_the_settings_of_the_first_host_reach_workers_and_couriers_of_all_hosts(hosts):
    """Its timeouts, its rule and its period."""
    code, options = script_path("two_hosts_timeouts"), ["--timeout", "wait=77", "--timeout", "exchange=0.01"]
    (hosts.folder / "run.toml").write_text('rule = "LocalSGD(overlap=0.5)"\nevery-n-batches = 7\n')
    hosts.start(code, *options, "--config", "run.toml", host=0)
    hosts.start(code, "--timeout", "wait=99", host=1, environment={"PLATOON_RULE": "EASGD()"})
    assert hosts.wait() == [0, 0], hosts.output(0)
    settings = ["LocalSGD(overlap=0.5)", 7], [77.0, 77.0, 0.01, ["wait=77,exchange=0.01"]]
    assert [hosts.said(rank, rank) for rank in (0, 1)] == [[*settings]] * 2
    ignored = " ".join(hosts.output(1).split())
    assert "ignoring PLATOON_TIMEOUTS=wait=99: the job was launched with PLATOON_TIMEOUTS=wait=77" in ignored
    assert "ignoring PLATOON_RULE=EASGD()" in ignored


def test_what_one_worker_does_all_see(hosts):
    code = script_path("two_hosts_what_one_worker_does_all_see")
    assert hosts.run(code) == [0, 0], hosts.output(0)
    for rank, host in ((0, 0), (1, 0), (2, 1)):
        assert hosts.said(rank, host) == [["voted"], ["rank 1 has enough"]]
    assert "rank 1 has enough" in hosts.output(1)


def test_a_lock_that_all_hosts_share(hosts):
    """One worker at a time is inside, wherever it is."""
    code = script_path("two_hosts_a_lock_that_all_hosts_share")
    assert hosts.run(code, workers=(2, 2), args=[str(hosts.folder)]) == [0, 0], hosts.log(0, 0) + hosts.log(2, 1)


FAILS = script_path("two_hosts_fails")


def test_a_worker_that_fails_on_another_host_is_shown_on_the_first(hosts):
    assert hosts.run(FAILS) == [1, 1]
    assert "ValueError: rank 2 has had it" in hosts.output(0)
    assert FAILS.name in hosts.output(0)


def test_a_worker_of_another_host_is_started_again_there(hosts):
    code = script_path("two_hosts_a_worker_of_another_host_is_started_again")
    assert hosts.run(
        code, "--max-restarts", "1", "--summary", "summary.json", workers=(1, 1), args=[str(hosts.folder)]
    ) == [0, 0], hosts.output(0)
    assert len(hosts.said(1, 1)) == 2
    assert json.loads((hosts.folder / "summary.json").read_text())["restarts"] == 1


WAIT = script_path("two_hosts_wait")


def start_waiting(hosts, *options, workers=(1, 1)):
    for host, count in enumerate(workers):
        hosts.start(WAIT, *options, host=host, hosts=len(workers), workers=count)
    for host in range(len(workers)):
        rank = sum(workers[:host])
        hosts.until(f"logs{host}/rank{rank}.log", "waits")


@pytest.mark.parametrize(
    ("number", "targets"),
    [(signal.SIGINT, [0]), pytest.param(signal.SIGTERM, [1], marks=pytest.mark.promise), (signal.SIGINT, [0, 1])],
)
def test_a_signal_to_any_launcher_ends_all(hosts, number, targets):
    start_waiting(hosts)
    for host in targets:
        hosts.launchers[host].send_signal(number)
    assert hosts.wait() == [128 + number] * 2, hosts.output(0)


@pytest.mark.parametrize("targets", [[1], [0, 1]])
def test_a_signal_for_the_workers_reaches_those_of_all_hosts_once(hosts, targets):
    for host in (0, 1):
        hosts.start(script_path("two_hosts_handles_a_signal"), host=host)
    for host in (0, 1):
        hosts.until(f"logs{host}/rank{host}.log", "waits")
    for host in targets:
        hosts.launchers[host].send_signal(signal.SIGUSR1)
    assert hosts.wait() == [0, 0], hosts.output(0)
    assert [hosts.said(rank, rank)[-1] for rank in (0, 1)] == [[1], [1]]


def test_a_second_signal_ends_a_host_though_the_first_one_is_silent(hosts):
    start_waiting(hosts, "--host-timeout", "200")
    hosts.launchers[0].send_signal(signal.SIGSTOP)
    try:
        hosts.until("h1.out", "no heartbeat from host 0")
        began = time.monotonic()
        for _ in range(2):
            hosts.launchers[1].send_signal(signal.SIGINT)
            time.sleep(0.3)  # two signals at once count as one
        assert hosts.launchers[1].wait(120) == 130
        assert time.monotonic() - began < 100  # about one second on an idle machine
        assert "SIGINT without a heartbeat from host 0" in hosts.output(1)
    finally:
        hosts.launchers[0].send_signal(signal.SIGCONT)
    hosts.launchers[0].send_signal(signal.SIGINT)
    assert hosts.wait() == [130, 130]


def test_a_killed_launcher_is_a_lost_host_and_the_others_go_on(hosts):
    start_waiting(hosts, "--host-timeout", "200")
    hosts.launchers[1].kill()
    began = time.monotonic()
    hosts.until("h0.out", "host 1 (")
    assert time.monotonic() - began < 100  # about one second on an idle machine
    hosts.launchers[0].send_signal(signal.SIGINT)  # its worker goes on, alone
    assert hosts.wait()[0] == 130
    assert "with workers 1: it" in hosts.output(0)
    assert hosts.said(0, 0) == [["waits"]]
    story = hosts.story()
    why = "it disconnected without notice: was its launcher killed?"
    assert {f"host 1: lost ({why})", "job: stops (SIGINT)"} < set(story)
    (lost,) = (line for line in story if line.startswith("rank 1: joined -> lost"))
    assert why in lost


def test_the_end_of_the_first_host_ends_the_others_before_its_timeout(hosts):
    start_waiting(hosts, "--host-timeout", "200")
    hosts.launchers[0].kill()
    began = time.monotonic()
    assert hosts.wait() == [-9, 1]
    assert time.monotonic() - began < 100  # about one second on an idle machine
    assert "lost host 0" in hosts.output(1)
    assert hosts.said(1, 1)[1] == ["WorkerLostError"]


def test_a_launcher_that_stands_still_for_a_while_loses_nothing(hosts):
    start_waiting(hosts)
    hosts.launchers[1].send_signal(signal.SIGSTOP)
    hosts.until("h0.out", "no heartbeat from host")
    time.sleep(1)  # longer
    hosts.launchers[1].send_signal(signal.SIGCONT)
    hosts.until("h0.out", "sends heartbeats again")
    hosts.launchers[0].send_signal(signal.SIGINT)
    assert hosts.wait() == [130, 130]
    about = [line.partition(" (")[0] for line in hosts.story() if line.startswith("host")]
    assert about == ["host 1: silent", "host 1: silent -> answers"]


def test_a_host_that_is_silent_for_too_long_is_lost(hosts):
    start_waiting(hosts, "--host-timeout", "2.5")
    hosts.launchers[1].send_signal(signal.SIGSTOP)
    hosts.until("h0.out", "with workers 1: it")
    hosts.launchers[1].send_signal(signal.SIGCONT)
    hosts.launchers[1].wait(120)
    assert "the job continues without this host" in hosts.output(1)
    hosts.launchers[0].send_signal(signal.SIGINT)
    assert hosts.wait() == [130, 1]


def test_a_launcher_of_a_job_that_was_started_anew_ends_and_another_takes_its_place(hosts):
    start_waiting(hosts)
    first, second = hosts.launchers
    second.send_signal(signal.SIGSTOP)
    first.kill()
    first.wait()
    hosts.launchers.remove(first)
    hosts.start(script("say(size)"), "--rdzv-timeout", "60", host=0)
    wait_for_port(hosts)
    second.send_signal(signal.SIGCONT)
    assert second.wait(120) == 1
    hosts.launchers.remove(second)
    # It may notice the end of the first one before it reaches the second.
    assert "host 0 has restarted" in hosts.output(1) or "lost host 0" in hosts.output(1)
    hosts.start(script("say(size)"), host=1)
    assert hosts.wait() == [0, 0], hosts.output(0)


def wait_for_port(hosts):
    """Wait until a new first host listens."""

    def listens():
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", hosts.port)) == 0

    until(listens, lambda: hosts.output(0), 100)


def test_a_silent_host_gives_its_seat_in_the_meeting_to_one_that_was_started_anew(hosts):
    code = script('worker.barrier("start")')
    hosts.start(code, host=0, hosts=3)
    silent = hosts.start(code, host=1, hosts=3)
    hosts.until("h0.out", "host 1 (")
    silent.send_signal(signal.SIGSTOP)
    hosts.until("h0.out", "no heartbeat from host")
    hosts.start(code, host=1, hosts=3)
    hosts.until("h0.out", "replaces it")
    silent.send_signal(signal.SIGCONT)
    hosts.start(code, host=2, hosts=3)
    assert silent.wait(120) == 2
    assert "another launcher has its --node-rank" in " ".join(hosts.output(1).split())
    hosts.launchers.remove(silent)
    assert hosts.wait() == [0, 0, 0], hosts.output(0)


def test_no_job_begins_without_a_host_that_is_silent_in_the_meeting(hosts):
    code = script('worker.barrier("start")')
    hosts.start(code, host=0, hosts=3)
    silent = hosts.start(code, host=1, hosts=3)
    hosts.until("h0.out", "host 1 (")
    silent.send_signal(signal.SIGSTOP)
    hosts.until("h0.out", "no heartbeat from host")
    hosts.start(code, host=2, hosts=3)
    hosts.until("h0.out", "host 2 (")
    silent.send_signal(signal.SIGCONT)
    assert hosts.wait() == [0, 0, 0], hosts.output(0)


def test_a_host_that_is_started_anew_before_it_is_lost_takes_part_again(hosts):
    code = script_path("two_hosts_a_lost_host_that_returns_takes_the_center")
    options = {"args": [str(hosts.folder)]}
    for host in (0, 1):
        hosts.start(code, "--allow-failures", "--host-timeout", "60", host=host, **options)
    hosts.until("logs1/rank1.log", "]")
    silent = hosts.launchers.pop()
    silent.send_signal(signal.SIGSTOP)
    try:
        hosts.until("h0.out", "no heartbeat from host")
        hosts.start(code, "--allow-failures", "--log-dir", "logs2", host=1, **options)
        hosts.until("h0.out", "has returned with workers 1")
    finally:
        silent.send_signal(signal.SIGCONT)
    assert silent.wait(120) == 1
    hosts.until("logs2/rank1.log", "]")
    (hosts.folder / "enough").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)


def test_a_host_that_cannot_keep_its_logs_says_so_on_the_first(hosts):
    (hosts.folder / "file").touch()
    hosts.start(script('worker.barrier("start")'), host=0)
    hosts.start(script('worker.barrier("start")'), "--log-dir", str(hosts.folder / "file" / "logs"), host=1)
    hosts.until("h0.out", "with workers 1: it")
    hosts.launchers[0].send_signal(signal.SIGINT)
    assert hosts.wait()[1] != 0
    assert "it has ended: ConfigurationError" in " ".join(hosts.output(0).split())


@pytest.mark.parametrize(
    ("other", "words", "message"),
    [
        ({"args": ["more"]}, [], "runs another script than host 0, or has other arguments"),
        ({"hosts": 4}, [], "has --nnodes 4, and host 0 has 2"),
        ({}, ["-D", "cuda7"], "cannot take part"),
        ({"environment": {"PLATOON_KEY_FILE": "KEY"}}, [], "has another key"),
    ],
)
def test_a_host_that_cannot_take_part_is_told_and_so_is_the_first(hosts, other, words, message):
    if "environment" in other:
        (hosts.folder / "other_key").write_text("00" * 32)
        (hosts.folder / "other_key").chmod(0o600)
        other = {"environment": {"PLATOON_KEY_FILE": str(hosts.folder / "other_key")}}
    hosts.start(script("say(size)"), "--rdzv-timeout", "6", host=0)
    hosts.start(script("say(size)"), *words, host=1, **other)
    assert hosts.wait() == [2, 2]
    assert message in " ".join(hosts.output(1).split()) or "cuda7" in hosts.output(1)
    assert (message if "key" not in message else "does not have the key") in " ".join(hosts.output(0).split())


def test_hosts_that_do_not_come_are_named(hosts):
    hosts.start(script("say(size)"), "--rdzv-timeout", "0.5", host=0, hosts=3)
    assert hosts.wait() == [2]
    assert "hosts 1, 2 of 3 did not join" in hosts.output(0)


def test_a_first_host_that_is_not_there_is_no_world_of_one(hosts):
    (hosts.folder / "key").write_text("00" * 32)
    (hosts.folder / "key").chmod(0o600)
    hosts.start(script("say(size)"), "--rdzv-timeout", "0.5", host=1)
    assert hosts.wait() == [2]
    assert "no answer from 127.0.0.1" in hosts.output(1)


def test_a_host_that_may_open_too_few_files_is_refused_before_any_worker_starts(hosts):
    hosts.start(script("say(size)"), host=0)
    hosts.until("key", "")
    hosts.start(script("say(size)"), host=1, descriptors=40)
    assert hosts.wait() == [2, 2], hosts.output(0)
    for host in (0, 1):
        assert "got a limit of 40 open files (ulimit -Hn)" in hosts.output(host)


def test_a_signal_while_hosts_wait_for_each_other_ends_the_wait(hosts):
    hosts.start(script("say(size)"), host=0)
    hosts.until("key", "")
    time.sleep(0.5)  # it handles signals soon after
    hosts.launchers[0].send_signal(signal.SIGTERM)
    assert hosts.wait() == [143]
    assert "while the hosts waited for each other" in hosts.output(0)


def test_a_host_takes_the_key_that_is_made_while_it_waits(hosts):
    hosts.start(script('worker.barrier("start")'), host=1)
    hosts.until("h1.out", "waiting for the key in ")
    assert "copy the file from host 0" in " ".join(hosts.output(1).split())
    hosts.start(script('worker.barrier("start")'), host=0)
    assert hosts.wait() == [0, 0], hosts.output(0)


def test_a_worker_that_is_interrupted_as_it_shares_gets_no_other_error(hosts):
    code = script_path("two_hosts_interrupted_as_it_shares")
    args = [str(hosts.folder / "logs1" / "courier1.log")]
    assert hosts.run(code, workers=(1, 1), args=args) == [0, 0], hosts.log(1, 1) + hosts.output(0)
    assert hosts.said(1, 1) == [["interrupted"]]


@pytest.mark.parametrize("rule", ["EASGD", "LocalSGD"])
def test_parameters_that_no_worker_of_the_first_host_shares_begin_with_those_of_another(hosts, rule):
    code = script_path("two_hosts_not_on_the_first")
    assert hosts.run(code, workers=(1, 1, 1), args=[rule]) == [0, 0, 0], hosts.output(0)
    begun = hosts.said(1, 1)
    assert begun in ([[1.0], [1.0]], [[2.0], [2.0]])  # by which of the two hosts had a center first
    assert hosts.said(2, 2) == begun
    assert hosts.said(0, 0) == begun[:1]
    assert "no worker of host 0 shares parameters (ranks 0 wait" in hosts.output(0)


@pytest.mark.promise
def test_the_other_host_saves_when_the_first_is_lost_and_the_job_is_resumed(hosts):
    code = script_path("two_hosts_the_other_host_saves_when_the_first_is_lost")
    folder = str(hosts.folder / "kept")
    for host in (0, 1):
        hosts.start(code, "--resume", folder, "--checkpoint-every", "0.2", host=host)
    hosts.until("logs1/rank1.log", "trains")
    until(lambda: list((hosts.folder / "kept").glob("checkpoint-*.npz")), lambda: hosts.output(0), 100)
    hosts.until("logs1/rank1.log", 'trains"]\n["trains"]\n["trains')
    hosts.launchers[0].kill()
    assert hosts.wait() == [-9, 1]
    assert "this host has saved its center in" in hosts.output(1), hosts.output(1)
    again = Hosts(hosts.folder, hosts.environment)
    try:
        for host in (0, 1):
            (hosts.folder / f"h{host}.out").unlink()
            again.start(code, "--resume", folder, host=host, args=["end"])
        assert again.wait() == [0, 0], again.output(0)
        assert "resumed from" in again.output(0)
        assert again.said(0, 0)[0][0] > 0.1
        assert again.said(1, 1)[0][0] == again.said(0, 0)[0][0]
    finally:
        again.close()


def test_nothing_to_resume_is_named_where_nothing_was_trained(hosts):
    """The first host is lost after many periods without a step."""
    code = script('begun = time.monotonic()\nwhile time.monotonic() < begun + 1: pass\nsay("waits")\ntime.sleep(100)')
    folder = hosts.folder / "kept"
    for host in (0, 1):
        hosts.start(code, "--resume", folder, "--checkpoint-every", "0.05", host=host)
    hosts.until("logs1/rank1.log", "waits")
    hosts.launchers[0].kill()
    assert hosts.wait()[0] == -9
    assert not list(folder.glob("checkpoint-*.npz"))
    assert "Resume from" not in hosts.output(1), hosts.output(1)


SLOW_DISK = """
import os, threading, time
force = os.fsync
def slow(fd):
    if threading.current_thread().name == "checkpoint" and "slow" in os.readlink(f"/proc/self/fd/{fd}"):
        time.sleep(2.5)
    force(fd)
os.fsync = slow
"""


def test_a_disk_that_is_slow_at_the_last_checkpoint_loses_no_host(hosts):
    """The first host forces two files to the disk, each of which takes longer than a host may be silent."""
    site = hosts.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW_DISK)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    code = script('worker.barrier("start")\nworker.progress(steps=1)')
    options = ["--checkpoint-every", "100", "--resume", "slow", "--host-timeout", "2"]
    hosts.start(code, *options, host=0, environment={"PYTHONPATH": path})
    hosts.start(code, *options, host=1)
    assert hosts.wait() == [0, 0], hosts.output(1)
    assert "lost" not in hosts.output(0) + hosts.output(1)
    assert list((hosts.folder / "slow").glob("checkpoint-*.npz"))


@pytest.mark.promise
def test_a_lost_host_that_returns_takes_the_center_of_the_others(hosts):
    code = script_path("two_hosts_a_lost_host_that_returns_takes_the_center")
    args = [str(hosts.folder)]
    for host in (0, 1):
        hosts.start(code, "--allow-failures", host=host, args=args)
    hosts.until("logs1/rank1.log", "]")
    hosts.launchers[1].kill()
    hosts.until("h0.out", "with workers 1: it")
    hosts.launchers.pop(1).wait()
    (hosts.folder / "logs1" / "rank1.log").unlink()
    hosts.start(code, "--allow-failures", host=1, args=args)
    hosts.until("h0.out", "has returned with workers 1")
    hosts.until("logs1/rank1.log", "]\n")
    # Those left are at 5, or a little lower if the lost host had pulled its center down first; a new center is at 7.
    assert 4.0 < hosts.said(1, 1)[0][0] < 6.0, hosts.log(1, 1)
    (hosts.folder / "enough").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)
    story = [line.partition(" (")[0].replace("ranks 0, 1", "rank 1") for line in hosts.story()]
    assert [line for line in story if "1" in line.partition(":")[0] and "left" not in line] == [
        "rank 1: expected -> joined",
        "rank 1: joined -> training",
        "host 1: lost",
        "rank 1: training -> lost",
        "rank 1: lost -> expected late",
        "host 1: lost -> returned",
        "rank 1: expected late -> joined late",
        "rank 1: joined late -> training late",
    ]


def test_all_workers_of_all_hosts_are_started_again_from_the_checkpoint(hosts):
    """Workers that need each other cannot come again one by one."""
    code = script_path("two_hosts_all_workers_of_all_hosts_are_started_again")
    options = ["--max-restarts", "1", "--checkpoint-every", "5", "--summary", "summary.json"]
    assert hosts.run(code, *options, workers=(2, 1), args=[str(hosts.folder)]) == [0, 0], hosts.output(0)
    assert json.loads((hosts.folder / "summary.json").read_text())["restarts"] == 1
    for rank, host in ((0, 0), (1, 0), (2, 1)):
        assert hosts.said(rank, host)[-2:] == [[[3.0] * 3]] * 2


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_lost_host_of_workers_that_need_each_other_is_no_interrupt(hosts, how):
    """Those that are left end by themselves, or are ended to be started again before the host is known to be lost."""
    code = script_path("two_hosts_a_lost_host_of_workers_that_need")
    options = ["--max-restarts", "1", "--checkpoint-every", "100", "--host-timeout", "2.5"]
    for host, workers in ((0, 2), (1, 1)):
        hosts.start(code, *options, host=host, workers=workers)
    hosts.until("logs1/rank2.log", "]")
    launcher = psutil.Process(hosts.launchers[1].pid)
    with contextlib.ExitStack() as stack:
        if how == "killed":
            launcher.kill()
        else:
            for process in [launcher, *launcher.children(recursive=True)]:
                stack.callback(process.kill)
                process.suspend()
        assert hosts.launchers[0].wait(120) == 1, hosts.output(0)
    hosts.launchers[1].wait()
    output = " ".join(hosts.output(0).split())
    assert "none can restart without the lost host" in output or "cannot restart the workers" in output


@pytest.mark.promise
def test_all_workers_end_with_one_model_in_asynchronous_training(hosts):
    code = script_path("two_hosts_all_workers_end_with_one_model")
    assert hosts.run(code, workers=(2, 1)) == [0, 0], hosts.output(0)
    first, *others = (hosts.said(rank, host) for rank, host in enumerate((0, 0, 1)))
    assert all(each == first for each in others)


def test_a_job_that_is_resumed_on_two_hosts_goes_on_with_center_average_and_moments(hosts):
    code, options = script_path("two_hosts_averages_resumed"), ["--resume", "kept", "--checkpoint-every", "100"]
    assert hosts.run(code, *options, workers=(1, 1), args=["train"]) == [0, 0], hosts.output(0)
    center, average, *moments = hosts.said(0, 0)[0]
    assert hosts.said(1, 1)[0][:2] == [center, average]
    # A host that comes late pulls the center down: the average may be above it.
    assert 0 < average < 30
    assert average != center
    again = Hosts(hosts.folder, hosts.environment)
    try:
        assert again.run(code, *options, workers=(1, 1), args=["resume"]) == [0, 0], again.output(0)
        assert "resumed from" in again.output(0)
        for rank in (0, 1):
            assert again.said(rank, rank)[0] == [center, average, *moments]
    finally:
        again.close()


def test_all_workers_of_all_hosts_have_sets_in_the_same_order(hosts):
    """A worker that joins late has it too."""
    assert hosts.run(script_path("order_of_sets"), workers=(2, 1)) == [0, 0], hosts.output(0)
    launched_and_joined = [*hosts.said(0, 0), *hosts.said(1, 0), *hosts.said(2, 1)]
    assert len(launched_and_joined) == 4
    assert all(order == launched_and_joined[0] for order in launched_and_joined)
