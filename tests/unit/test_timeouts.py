"""The table of timeouts: what uses and documents it, and what a changed one does to others."""

import re
from pathlib import Path

import pytest

import platoon_base
from platoon_base import timeouts
from platoon_base.errors import ConfigurationError

pytestmark = pytest.mark.base

FOLDER = Path(platoon_base.__file__).parent


def test_the_code_reads_all_timeouts_of_the_table_and_no_others():
    texts = [path.read_text() for path in FOLDER.rglob("*.py") if path.name != "timeouts.py"]
    used = {name for text in texts for name in re.findall(r"\btimeout\([\"']([a-z]+)[\"']\)", text)}
    assert used == set(timeouts.ROWS)


def test_the_page_has_the_rows_of_the_table():
    page = (FOLDER.parent / "docs" / "timeouts.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (.*) \|$", page, re.MULTILINE)
    coupled = {name: f" At least {row.times:g} times `{row.of}`." for name, row in timeouts.ROWS.items() if row.of}
    coupled["host"] = " At least `silence`."
    rows = timeouts.ROWS.items()
    assert told == [(name, f"{row.default:g}", row.meaning + coupled.get(name, "")) for name, row in rows]


@pytest.mark.parametrize(
    ("variables", "text", "want"),
    [
        ({}, "wait=900", "wait=900"),
        ({"PLATOON_TIMEOUT_S": "20"}, "grace=0", "wait=20,grace=0"),
        ({"PLATOON_TIMEOUT_S": "20", "PLATOON_TIMEOUTS": " wait = 30, "}, "", "wait=30"),
        ({"PLATOON_HOSTS_EVERY_S": "0"}, "heartbeat=1,silence=4", "heartbeat=1,silence=4,exchange=0"),
    ],
)
def test_what_is_given_last_counts(variables, text, want):
    timeouts.change(variables, [text])
    assert variables == {"PLATOON_TIMEOUTS": want}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("wiat=1", "there is no timeout 'wiat'. Did you mean wait"),
        ("xyz=1", "there is no timeout 'xyz'. The names are wait, connect"),
        ("wait=0", "it must be a number of seconds, 0.001 or more"),
        ("grace=-1", "it must be a number of seconds, 0 or more"),
        ("heartbeat=0.01", "0.1 or more"),
        ("wait=inf", "it must be a number"),
        (
            "heartbeat=0.6",
            "silence=2 and heartbeat=0.6: one late heartbeat .* Give silence at least",
        ),
        ("silence=20", "host=10 and silence=20: a host would be lost before"),
    ],
)
def test_what_would_break_a_job_is_refused(text, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        timeouts.require_coupled({"PLATOON_TIMEOUTS": text})


def test_a_host_adopts_the_timeouts_of_the_job_but_not_its_rendezvous():
    variables = {"PLATOON_TIMEOUTS": "rendezvous=900,grace=3"}
    timeouts.adopt_job(variables, "wait=50")
    assert variables == {"PLATOON_TIMEOUTS": "wait=50,rendezvous=900"}


def test_couplings_are_checked_after_all_options():
    variables = {"PLATOON_TIMEOUTS": "silence=20"}
    timeouts.change(variables, ["host=40"])
    timeouts.require_coupled(variables)
