"""Reported values that come often: the latest of each name arrives, and before all that is sent after it."""

import time

import pytest
from scripts_here import script_path
from watching import until

from platoon_base.channels.client import Reports
from platoon_base.errors import ProtocolError, WorkerLostError

pytestmark = pytest.mark.base


class Sent(list):
    """Collects what is sent; raises instead while ``broken``."""

    broken = False

    def __call__(self, values, timeout_s):
        if self.broken:
            raise WorkerLostError("gone")
        self.append(dict(values))


class Refused(Sent):
    """Refuses messages with "bad" in them."""

    def __call__(self, values, timeout_s):
        if "bad" in values.values():
            raise ProtocolError("too long")
        super().__call__(values, timeout_s)


def test_the_first_value_of_a_name_is_sent_at_once_and_later_ones_together():
    sent = Sent()
    reports = Reports(sent, every_s=1e6)
    reports.add({"loss": 1.0}, 1.0)
    assert sent == [{"loss": 1.0}]
    for loss in (0.75, 0.5):
        reports.add({"loss": loss}, 1.0)
        reports.flush_if_due(1.0)
    assert sent == [{"loss": 1.0}]
    reports.add({"note": "new", "loss": 0.25}, 1.0)
    assert sent[1:] == [{"note": "new", "loss": 0.25}], "a new name takes all along"
    reports.add({"loss": 0.125}, 1.0)
    reports.add({"note": "newer"}, 1.0)
    reports.flush(1.0)
    reports.flush(1.0)
    assert sent[2:] == [{"loss": 0.125, "note": "newer"}]


def test_a_value_that_was_kept_is_sent_once_it_is_due():
    sent = Sent()
    reports = Reports(sent, every_s=0.05)
    began = time.monotonic()
    reports.add({"loss": 1.0}, 1.0)
    reports.add({"loss": 0.5}, 1.0)
    until(lambda: reports.flush_if_due(1.0) or len(sent) > 1, 10)
    assert sent[1] == {"loss": 0.5}
    assert time.monotonic() - began > 0.04


def test_values_that_could_not_be_sent_are_kept():
    sent = Sent()
    reports = Reports(sent, every_s=1e6)
    reports.add({"a": 1}, 1.0)
    reports.add({"a": 2}, 1.0)
    sent.broken = True
    with pytest.raises(WorkerLostError):
        reports.add({"b": 1}, 1.0)
    sent.broken = False
    reports.flush(1.0)
    assert sent[1:] == [{"a": 2}]


def test_values_that_are_refused_are_not_sent_again_before_each_later_message():
    sent = Refused()
    reports = Reports(sent, every_s=1e6)
    reports.add({"a": "good"}, 1.0)
    reports.add({"a": "bad"}, 1.0)
    with pytest.raises(ProtocolError):
        reports.flush(1.0)
    reports.flush(1.0)
    reports.add({"b": "good"}, 1.0)
    assert sent == [{"a": "good"}, {"b": "good"}]


def test_values_that_were_kept_are_not_lost_with_a_later_one_that_is_refused():
    sent = Refused()
    reports = Reports(sent, every_s=1e6)
    reports.add({"a": 1}, 1.0)
    reports.add({"a": 2}, 1.0)
    with pytest.raises(ProtocolError):
        reports.add({"new": "bad"}, 1.0)
    reports.flush(1.0)
    assert sent == [{"a": 1}, {"a": 2}]


def test_a_value_that_cannot_be_sent_is_refused_by_report_itself_though_it_would_be_kept(run_job):
    outcome = run_job(
        script_path("reports_a_value_that_cannot_be_sent_is_refused"),
        workers=1,
    ).require_success()
    assert outcome.reported == {"x": 1, "y": 3}


def test_a_job_has_the_latest_of_many_values(run_job):
    """Before a barrier, and at the end; the messages are a few, which only the order of values shows here."""
    outcome = run_job(script_path("reports_a_job_has_the_latest_of_many_values")).require_success()
    assert outcome.reported == {"before": "1 was last", "last": 999}
