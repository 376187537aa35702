"""`platoon launch --report` and `--trace`: numbers are those of the job, stragglers are named while it runs."""

import csv
import json
import os
import re
import signal
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base

TIMEOUT_S = 120
NAMED_WITHIN_S = 10
ROUNDING = 1e-4
REPORTED = "launch", "-n", 2, "--report", "run.html"


class Page(HTMLParser):
    """The page as a browser reads it: its texts by element, and all attributes."""

    VOID = ("meta", "path", "rect", "circle", "polyline")

    def __init__(self, path):
        super().__init__()
        self.texts, self.attributes, self.open = [], [], []
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag):
        return [text for each, text in self.texts if each == tag]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def require_between(shown, values, name, rank):
    assert values[f"{name} within {rank}"] - ROUNDING <= shown <= values[f"{name} around {rank}"] + ROUNDING


def test_the_times_are_those_that_the_script_measures(platoon, tmp_path):
    platoon("launch", "-n", "2", "--report", "run.html", script_path("run_report_phases")).require()
    values = {row["name"]: float(row["value"]) for row in rows_of(tmp_path / "run_values.csv")}
    last = {int(row["rank"]): row for row in rows_of(tmp_path / "run_workers.csv")}
    for rank, row in last.items():
        shown = {name: float(row[f"{name}_seconds"]) for name in ("compute", "synchronization", "waiting", "loading")}
        assert row["steps"] == "41"
        assert float(row["loss"]) == pytest.approx(1 / 41)
        require_between(shown["loading"], values, "loading", rank)
        require_between(float(row["validation_seconds"]), values, "validation", rank)
        assert shown["synchronization"] + shown["waiting"] <= values[f"exchange around {rank}"] + ROUNDING
        assert shown["compute"] >= 40 * 0.005
    # Worker 1 loads 26 ms longer in each step, for which worker 0 waits.
    assert float(last[0]["waiting_seconds"]) > 20 * 0.026
    assert float(last[0]["waiting_seconds"]) > float(last[1]["waiting_seconds"])
    page = Page(tmp_path / "run.html")
    items = page.of("li")
    assert any(re.match(r"\d+ % of rank 1's time is waiting for batches", item) for item in items), items
    assert any(item.startswith("Worker 1 is slower than the others in loading") for item in items), items
    assert {"Training loss", "loss", "Steps per second", "<b>&"} <= set(page.of("figcaption"))
    names = {(tag, name) for tag, name, _ in page.attributes}
    assert not any(tag in ("script", "link", "img", "iframe") for tag, _ in names)
    assert not any(name in ("href", "src") or name.startswith("on") for _, name in names)
    links = [value for _, name, value in page.attributes if name == "xlink:href"]
    assert links
    assert all(link.startswith("#") for link in links)  # to a shape in the same chart
    text = (tmp_path / "run.html").read_text()
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_without_matplotlib_the_page_has_no_charts_and_says_what_to_install(platoon, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys; sys.modules['matplotlib'] = None\n")
    hidden = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])}
    words = ("launch", "-n", "2", "--report", "run.html", script_path("run_report_phases"))
    ran = platoon(*words, environment=hidden).require()
    page = Page(tmp_path / "run.html")
    assert page.of("svg") == []
    assert "worker 0 cpu" in page.of("td")
    for text in (ran.stdout, *page.of("p")[-1:]):
        assert "matplotlib is not installed: pip install 'platoon-plugins[report]'" in text


def test_the_times_of_workers_of_another_host_are_those_that_they_measure(hosts, tmp_path):
    options = ("--report", "run.html", "--trace", "trace.json")
    assert hosts.run(script_path("run_report_phases"), *options, workers=(1, 1)) == [0, 0], hosts.output(0)
    values = {row["name"]: float(row["value"]) for row in rows_of(tmp_path / "run_values.csv")}
    last = {int(row["rank"]): row for row in rows_of(tmp_path / "run_workers.csv")}
    for rank in (0, 1):
        require_between(float(last[rank]["loading_seconds"]), values, "loading", rank)
    items = Page(tmp_path / "run.html").of("li")
    assert any(item.startswith("Worker 1 is slower than the others in loading") for item in items), items
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0}


@pytest.mark.promise
def test_losses_and_restarts_are_on_the_timeline(platoon, tmp_path):
    options = ("--max-restarts", "1", "--checkpoint-every", "0.2", "--report", "run.html", "--log-dir", "logs")
    platoon("launch", "-n", "2", *options, script_path("run_report_fails")).require()
    page = Page(tmp_path / "run.html")
    assert {"1 restart.", "Worker 1 failed: exit status 3 (run_report_fails.py:15)."} <= set(page.of("li"))
    text = (tmp_path / "run.html").read_text()
    timeline = ElementTree.fromstring(text[text.rindex("<svg") : text.rindex("</svg>") + 6])
    groups = {each.get("id"): [part.tag.rpartition("}")[2] for part in each.iter()] for each in timeline.iter()}
    assert groups["marks-bad"].count("use") == 1
    assert groups["marks-note"].count("use") == 2  # the restart and the stop
    assert groups["marks-good"].count("use") > 3  # three joins and the checkpoints
    assert groups["lives"].count("path") == 3
    assert "training -> left" in page.of("pre")[0]


def line_with(process, text, deadline, lines):
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return line
        assert time.monotonic() < deadline, lines
    raise AssertionError("".join(lines))


@pytest.mark.parametrize(("rank", "phase"), [(1, "compute"), (0, "loading")])
def test_an_injected_straggler_is_named_within_10_s(start_platoon, tmp_path, rank, phase):
    over, lines = tmp_path / "over", []
    process = start_platoon(*REPORTED, script_path("run_report_straggler"), rank, phase, over)
    try:
        line_with(process, "a step", time.monotonic() + TIMEOUT_S, lines)
        began = time.monotonic()
        line = line_with(process, "is slower", began + TIMEOUT_S, lines)
        assert time.monotonic() - began < NAMED_WITHIN_S
    finally:
        over.touch()
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    name = {"compute": "computation", "loading": "loading"}[phase]
    assert line.startswith(f"WARNING: worker {rank} is slower than the others in {name}: 2")
    assert "they wait " in line
    assert "is slower" not in rest
    assert process.returncode == 0, rest


def test_the_report_is_written_after_ctrl_c(start_platoon, tmp_path):
    lines = []
    words = script_path("run_report_straggler"), 9, "none", tmp_path / "never"
    process = start_platoon(*REPORTED, "--grace", "5", *words)
    try:
        line_with(process, "a step", time.monotonic() + TIMEOUT_S, lines)
        process.send_signal(signal.SIGINT)
    finally:
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, rest
    assert any(item.startswith("The job was stopped after") for item in Page(tmp_path / "run.html").of("li"))


def test_a_trace_has_the_phases_of_all_workers_on_one_clock(platoon, tmp_path):
    options = ("--trace", "trace.json", "--report", "run.html", "--log-dir", "logs")
    platoon("launch", "-n", "2", *options, script_path("run_report_phases")).require()
    assert not (tmp_path / "logs" / "trace").exists()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {(rank, name) for rank in (0, 1) for name in (f"worker {rank}", "steps", "phases")}
    spans = {rank: [e for e in events if e["ph"] == "X" and e["pid"] == rank] for rank in (0, 1)}
    calls = {}
    for rank, own in spans.items():
        assert sum(e["name"] == "step" for e in own) == 40
        for track in (1, 2):
            ends = [(e["ts"], e["ts"] + e["dur"]) for e in own if e["tid"] == track]
            assert all(end <= begin for (_, end), (begin, _) in zip(ends, ends[1:]))
        calls[rank] = [(e["ts"], e["ts"] + e["dur"]) for e in own if e["name"] == "collective"]
        loaded = sum(e["dur"] for e in own if e["name"] == "loading") / 1e6
        row = [row for row in rows_of(tmp_path / "run_workers.csv") if row["rank"] == str(rank)][-1]
        assert loaded == pytest.approx(float(row["loading_seconds"]), rel=0.01)
    assert len(calls[0]) == len(calls[1]) == 40
    # No worker leaves a call before the other one has come to it.
    assert all(max(a[0], b[0]) <= min(a[1], b[1]) for a, b in zip(calls[0], calls[1]))
    instants = [e for e in events if e["ph"] == "i"]
    assert sum("-> joined" in e["name"] for e in instants) == 2
    first = min(e["ts"] for e in spans[0])
    assert all(0 <= e["ts"] < first for e in instants if "-> joined" in e["name"] and e["pid"] == 0)
