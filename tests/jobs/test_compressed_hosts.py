"""`platoon launch --hosts-compression`, by real launchers; the hosts are folders of this machine."""

import subprocess
import sys

import pytest
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment

pytestmark = pytest.mark.base

ROUNDS = script_path("compressed_hosts_rounds")


# The most that hosts may owe after eight rounds. Without residuals it would be 0.9 and 7.
@pytest.mark.parametrize(("codec", "owed"), [pytest.param("int4", 0.6, marks=pytest.mark.promise), ("topk(0.05)", 4)])
def test_workers_of_all_hosts_have_equal_bits_and_little_is_owed(hosts, codec, owed):
    done = hosts.run(ROUNDS, "--hosts-compression", codec, workers=(2, 1), args=["DiLoCo(1.0, 0.0)"])
    assert done == [0, 0], hosts.output(0) + hosts.output(1)
    first, *others = (hosts.said(rank, host) for rank, host in ((0, 0), (1, 0), (2, 1)))
    assert len(set(map(str, first))) == len(first) == 9
    for other in others:
        assert other == first
    assert 0 < first[-1][0] < owed, first[-1][0]


def test_a_courier_that_is_killed_changes_no_bit_and_a_file_of_the_run_names_the_codec(hosts):
    (hosts.folder / "run.toml").write_text('hosts-compression = "int4"\n')
    options, args = ["--config", "run.toml"], ["DiLoCo(1.0, 0.0)", "kill"]
    assert hosts.run(ROUNDS, *options, workers=(1, 1), args=args) == [0, 0], hosts.output(0) + hosts.output(1)
    assert "the courier of this host ended" in hosts.output(1)
    assert hosts.said(0, 0) == hosts.said(1, 1)
    assert 0.01 < hosts.said(0, 0)[-1][0] < 0.6


def test_a_resumed_job_begins_without_residuals_and_with_equal_centers(hosts):
    options = ["--hosts-compression", "int4", "--resume", "kept", "--checkpoint-every", "100"]
    again = Hosts(hosts.folder, hosts.environment)
    try:
        for each in (hosts, again):
            assert each.run(ROUNDS, *options, workers=(1, 1), args=["LocalSGD()"])[-2:] == [0, 0], each.output(0)
            assert each.said(0, 0) == each.said(1, 1)
        assert "resumed from" in again.output(0)
        assert [path.suffix for path in (hosts.folder / "kept").glob("residual*")] == []
    finally:
        again.close()


def test_what_is_not_compressed_is_said_once(hosts):
    reduces = script_path("compressed_hosts_reduces")
    assert hosts.run(reduces, "--hosts-compression", "topk(0.1)", workers=(1, 1)) == [0, 0], hosts.output(0)
    assert hosts.said(0, 0) == hosts.said(1, 1) == [[3.0]]
    text = "are sent between hosts uncompressed: topk does not apply to them, use int8, int4 or int2"
    assert hosts.log(0, 0).count(text) == 1


def test_top_k_is_refused_for_a_rule_whose_workers_do_not_wait(hosts):
    script = script_path("compressed_hosts_asynchronous")
    assert hosts.run(script, "--hosts-compression", "topk(0.1)", workers=(1, 1)) == [0, 0], hosts.output(0)
    for rank in (0, 1):
        ((text,),) = hosts.said(rank, rank)
        assert "got --hosts-compression topk(0.1) and EASGD" in text
        assert "use int8, int4 or int2, or LocalSGD, SlowMo or DiLoCo" in text


def launch(tmp_path, *words, environment=None):
    (tmp_path / "train.py").write_text("")
    return subprocess.run(
        [sys.executable, "-m", "platoon_base", "launch", *words, "-n", "1", "-D", "cpu", "train.py"],
        cwd=tmp_path, env={**clean_environment(), "COLUMNS": "200", **(environment or {})}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "environment", "configuration"),
    [
        (["--hosts-compression", "gzip"], {}, ""),
        ([], {"PLATOON_HOSTS_COMPRESSION": "gzip"}, ""),
        (["--config", "run.toml"], {}, 'hosts-compression = "gzip"'),
    ],
    ids=["option", "environment", "file"],
)
def test_a_value_that_does_not_exist_is_refused_at_once(tmp_path, words, environment, configuration):
    (tmp_path / "run.toml").write_text(configuration)
    done = launch(tmp_path, *words, environment=environment)
    assert done.returncode == 2
    text = " ".join(done.stderr.split())
    assert "'gzip'" in text
    assert "it must be none, float16, bfloat16, int8, int4, int2 or topk(PART)" in text


def test_on_one_host_it_has_no_effect(tmp_path):
    done = launch(tmp_path, "--hosts-compression", "int8")
    assert done.returncode == 0
    assert "--hosts-compression int8 has no effect on one host" in done.stdout + done.stderr


@pytest.mark.parametrize("value", ["None", " none"])
def test_none_in_any_spelling_is_none(tmp_path, value):
    done = launch(tmp_path, environment={"PLATOON_HOSTS_COMPRESSION": value})
    assert done.returncode == 0
    assert "--hosts-compression" not in done.stdout + done.stderr
