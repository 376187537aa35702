"""Jobs on two hosts with compressed rounds that are started again from a checkpoint, with its residuals."""

import json
import shutil
import time

import numpy as np
import pytest
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts

pytestmark = [pytest.mark.base, pytest.mark.slow]


RESUMED = script_path("compressed_hosts_resumed")
LOST = "are not used"
SAVING = ("--resume", "kept", "--checkpoint-every", "100")


def require_restored(hosts):
    for host in (0, 1):
        for text in (LOST, "starts with a residual"):
            assert text not in hosts.output(host)


def go_on(hosts, script, codec, args, workers=(1, 1)):
    again = Hosts(hosts.folder, hosts.environment)
    try:
        options = ["--hosts-compression", codec, *SAVING]
        assert again.run(script, *options, workers=workers, args=args) == [0] * len(workers), again.output(0)
        assert "resumed from" in again.output(0)
    finally:
        again.close()
    return again


@pytest.mark.parametrize(
    ("rule", "codec"),
    [("DiLoCo()", "topk(0.1)"), pytest.param("DiLoCo()", "int4", marks=pytest.mark.promise)],
)
def test_a_job_that_is_resumed_has_the_bits_of_one_that_was_not_interrupted(hosts, rule, codec):
    options = ["--hosts-compression", codec]
    assert hosts.run(RESUMED, *options, workers=(1, 1), args=[rule, "0", "6"]) == [0, 0], hosts.output(0)
    expected = hosts.said(0, 0)
    assert hosts.run(RESUMED, *options, *SAVING, workers=(1, 1), args=[rule, "0", "3"])[-2:] == [0, 0]
    again = go_on(hosts, RESUMED, codec, [rule, "3", "6"])
    for rank in (0, 1):
        assert again.said(rank, rank) == expected[3:], again.output(0) + again.output(1)
    require_restored(again)


def test_workers_that_are_all_started_again_go_on_with_the_same_bits(hosts, tmp_path):
    rule, options = "DiLoCo()", ["--hosts-compression", "int4"]
    assert hosts.run(RESUMED, *options, workers=(1, 1), args=[rule, "0", "6"]) == [0, 0], hosts.output(0)
    expected = hosts.said(0, 0)
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    again = Hosts(hosts.folder, hosts.environment)
    try:
        args = [rule, str(tmp_path / "expected.json"), "6", "3", str(tmp_path / "died"), "dies"]
        again.run(RESUMED, *options, *SAVING, "--max-restarts", "1", workers=(1, 1), args=args)
        for rank in (0, 1):
            found = again.said(rank, rank)
            assert found[-3:] == expected[3:], again.output(0) + again.output(1)
            assert found[:-3] in ([], expected[:3])  # before that; a log may be put aside
        assert "all workers are started again" in again.output(0)
        require_restored(again)
    finally:
        again.close()


def copy_of_checkpoint(kept, target):
    """Copy the newest checkpoint, with the residuals of two hosts; returns whether all are there, of a round."""
    try:
        newest = max(kept.glob("checkpoint-*.npz"))
        with np.load(newest) as file:
            key = json.loads(file["about"].tobytes())["residuals"]["key"]
            has_rounds = "center/0" in file and bool(file["center/0"].any())
        for name in (newest.name, *(f"residual-{host}-{key}.npz" for host in (0, 1))):
            shutil.copy(kept / name, target / name)
    except (OSError, ValueError, TypeError):  # none with a center yet, or a newer one has taken its place
        return False
    return has_rounds


def test_a_checkpoint_within_the_training_has_the_residuals_of_its_round(hosts, tmp_path):
    copied = tmp_path / "copied"
    copied.mkdir()
    options = ["--hosts-compression", "int4", "--resume", "kept", "--checkpoint-every", "0.1"]
    for host in (0, 1):
        hosts.start(RESUMED, *options, host=host, args=["DiLoCo()", "0", "80", "60", str(tmp_path / "done")])
    deadline = time.monotonic() + 120
    while not copy_of_checkpoint(hosts.folder / "kept", copied):
        assert time.monotonic() < deadline, hosts.output(0)
        time.sleep(0.01)
    (tmp_path / "done").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)
    expected = hosts.said(0, 0)
    for path in (hosts.folder / "kept").iterdir():
        path.unlink()
    for path in [max(copied.glob("checkpoint-*.npz")), *copied.glob("residual-*.npz")]:
        shutil.copy(path, hosts.folder / "kept" / path.name)
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    again = go_on(hosts, RESUMED, "int4", ["DiLoCo()", str(tmp_path / "expected.json"), "80"])
    first = again.said(0, 0)[0][0]
    assert 0 < first <= 60
    for rank in (0, 1):
        assert again.said(rank, rank) == expected[first:], again.output(0) + again.output(1)
    require_restored(again)


def make_checkpoint(hosts, *options):
    """Run a job of two hosts that ends with a checkpoint."""
    done = hosts.run(RESUMED, *options, *SAVING, workers=(1, 1), args=["LocalSGD()", "0", "2"])
    assert done == [0, 0], hosts.output(0)


MORE = ["LocalSGD()", "2", "3"]


def test_a_checkpoint_of_rounds_without_compression_has_lost_nothing(hosts):
    make_checkpoint(hosts)
    require_restored(go_on(hosts, RESUMED, "int4", MORE))


@pytest.mark.parametrize(
    ("codec", "workers", "why"),
    [
        ("int8", (1, 1), "it is of --hosts-compression int4, and this job has int8"),
        ("int4", (1, 1, 1), "it is of 2 hosts, and this job has 3"),
    ],
)
def test_residuals_of_other_hosts_or_another_codec_are_not_used_and_the_first_host_warns(hosts, codec, workers, why):
    make_checkpoint(hosts, "--hosts-compression", "int4")
    again = go_on(hosts, RESUMED, codec, MORE, workers)
    assert again.output(0).replace("\n", " ").count(LOST) == 1
    assert why in " ".join(again.output(0).split())
    assert "starts with a residual of zero" not in again.output(0) + again.output(1)


def test_on_one_host_residuals_are_not_used_and_it_warns(hosts):
    make_checkpoint(hosts, "--hosts-compression", "int4")
    words = [*SAVING, "--log-dir", "alone", "-n", "2", "-D", "cpu", str(RESUMED), *MORE]
    output = " ".join(hosts.command(0, "launch", *words).split())
    assert "are not used: it is of 2 hosts, and this job runs on one" in output


def test_a_host_whose_residual_is_missing_warns_and_starts_from_zero(hosts):
    make_checkpoint(hosts, "--hosts-compression", "int4")
    for path in (hosts.folder / "kept").glob("residual-1-*.npz"):
        path.unlink()
    again = go_on(hosts, RESUMED, "int4", MORE)
    assert "starts with a residual" not in again.output(0)
    assert again.output(1).count("host 1 starts with a residual of zero") == 1
