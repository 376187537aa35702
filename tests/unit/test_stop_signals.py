"""The signals that end a launcher: together they are one, apart each counts, whenever they are taken."""

import os
import signal
import time

import pytest

from platoon_base.controller.stop_signals import StopSignals

pytestmark = pytest.mark.base


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def test_together_they_are_one():
    with StopSignals() as signals:
        began = time.monotonic()
        send(signal.SIGTERM, signal.SIGHUP, signal.SIGTERM)
        apart = time.monotonic() - began > 0.05
        assert len(signals.take()) == 1 or apart
        assert signals.take() == []


def test_apart_each_counts_though_they_are_taken_together():
    with StopSignals() as signals:
        send(signal.SIGINT)
        time.sleep(0.3)  # so far apart a user presses Ctrl-C
        send(signal.SIGINT)
        assert signals.take() == [signal.SIGINT, signal.SIGINT]
        assert signals.take() == []


def test_without_one_it_waits_as_long_as_it_was_told():
    with StopSignals() as signals:
        assert signals.take(0.01) == []
