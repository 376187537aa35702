"""The port for Prometheus, read by prometheus_client's own parsers of its two formats."""

import contextlib
import math
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner
from needing import needs_package
from scripts_here import script_path
from watching import PATIENCE_S, until

from platoon_base.cli.commands.launch import command
from platoon_base.cli.trackers.prometheus import MetricsPort
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.errors import ConfigurationError
from platoon_base.shm.job_state import Progress

pytestmark = pytest.mark.base

needs_client = needs_package("prometheus_client", "pip install 'platoon-plugins[metrics]'")
NOTHING_YET = Progress(0, 0, 0, math.nan, 0.0, 0.0, 0.0)


def snapshot():
    roster = [Participant(rank, True, phase=Phase.TRAINING, device="cpu") for rank in range(2)]
    busy = Progress(3, 700, 70, 0.25, 1.5, 10.0, 80.0, steps_before_start=300, cpu_percent=50.0)
    progress = {0: busy, 1: NOTHING_YET}
    return Snapshot(roster, progress, {"val_loss": 0.125, "note": "text"}, None, 90.0, missed_checkpoints=2)


def samples(text):
    """Return the values of a page by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (each.name, *sorted(each.labels.values())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def read(url, accept="text/plain"):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=PATIENCE_S) as page:
        return page.read().decode()


@needs_client
def test_prometheus_reads_workers_and_reported_values():
    with contextlib.closing(MetricsPort(("127.0.0.1", 0), 'a "train".py')) as port:
        assert [name for name, *_ in samples(read(port.url))] == ["platoon_job_info"]
        port.take(snapshot())
        found = samples(read(port.url))
        from prometheus_client.openmetrics.parser import text_string_to_metric_families

        families = text_string_to_metric_families(read(port.url, "application/openmetrics-text; version=1.0.0"))
        assert {"platoon_steps", "platoon_loss", "platoon_reported"} <= {family.name for family in families}
    about = next(key for key in found if key[0] == "platoon_job_info")
    assert 'a "train".py' in about
    assert {key: value for key, value in found.items() if key[0] != "platoon_job_info"} == {
        ("platoon_job_seconds",): 90.0,
        ("platoon_failures_total",): 0.0,
        ("platoon_missed_checkpoints_total",): 2.0,
        ("platoon_workers", "training"): 2.0,
        ("platoon_reported", "val_loss"): 0.125,
        ("platoon_steps_total", "0", "cpu"): 400.0,  # since it was started, at step 300
        ("platoon_steps_total", "1", "cpu"): 0.0,
        ("platoon_syncs_total", "0", "cpu"): 70.0,
        ("platoon_syncs_total", "1", "cpu"): 0.0,
        ("platoon_sync_seconds_total", "0", "cpu"): 1.5,
        ("platoon_sync_seconds_total", "1", "cpu"): 0.0,
        ("platoon_epoch", "0", "cpu"): 3.0,
        ("platoon_epoch", "1", "cpu"): 0.0,
        ("platoon_cpu_percent", "0", "cpu"): 50.0,
        ("platoon_cpu_percent", "1", "cpu"): 0.0,
        ("platoon_memory_bytes", "0", "cpu"): 0.0,
        ("platoon_memory_bytes", "1", "cpu"): 0.0,
        ("platoon_loss", "0", "cpu"): 0.25,  # that of worker 1 is not known
    }


@needs_client
def test_a_job_serves_its_numbers_until_it_ends(tmp_path):
    words = ["launch", "-n", "2", "--metrics-port", "0", script_path("metrics_until_told")]
    with subprocess.Popen(
        [sys.executable, "-m", "platoon_base", *map(str, words)],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            lines = iter(launcher.stdout.readline, "")
            url = next(found[1] for line in lines if (found := re.search(r"(http://127\.0\.0\.1:\d+/metrics)", line)))
            until(lambda: samples(read(url)).get(("platoon_reported", "val")) == 0.5)
            found = samples(read(url))
            (tmp_path / "go").touch()
            launcher.stdout.read()
            assert launcher.wait(PATIENCE_S) == 0
        finally:
            launcher.kill()
    for rank in ("0", "1"):
        assert found["platoon_steps_total", rank, "cpu"] == 5.0
        assert found["platoon_loss", rank, "cpu"] == 0.75
    with pytest.raises(urllib.error.URLError):
        read(url)


def invoke(*words):
    CliRunner().invoke(command, [*words, "script.py"], standalone_mode=False, catch_exceptions=False)


@needs_client
def test_a_port_that_is_taken_leaves_the_logs_of_an_earlier_run(tmp_path):
    (tmp_path / "rank0.log").write_text("of an earlier run")
    with contextlib.closing(MetricsPort(("127.0.0.1", 0), "train.py")) as first:
        taken = first.url.rpartition(":")[2].partition("/")[0]
        words = ["-n", "1", "--log-dir", str(tmp_path), "--metrics-port", taken, str(script_path("metrics_until_told"))]
        ran = CliRunner().invoke(command, words)
    assert isinstance(ran.exception, ConfigurationError), (ran.output, ran.exc_info)
    assert [each.name for each in tmp_path.iterdir()] == ["rank0.log"]
