"""The signals that end a launcher: together they are one, apart each counts, whenever they are taken."""

import os
import signal
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from platoon_base.controller.controller import Ending
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.system.process import catches

pytestmark = pytest.mark.base


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def test_together_they_are_one():
    numbers = {signal.SIGTERM, signal.SIGHUP}
    with StopSignals() as signals:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        send(*numbers)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # both come now
        (first,) = signals.take()
        assert first in numbers
        assert signals.take() == []


def test_apart_each_counts_though_they_are_taken_together():
    with StopSignals() as signals:
        send(signal.SIGINT)
        time.sleep(0.3)  # so far apart a user presses Ctrl-C
        send(signal.SIGINT)
        assert signals.take() == [signal.SIGINT, signal.SIGINT]
        assert signals.take() == []


def test_one_signal_to_the_launchers_of_all_hosts_is_one_and_later_ones_count():
    children, own = Mock(), SimpleNamespace(take=lambda: [signal.SIGTERM], take_for_workers=list)
    ending = Ending(children, Mock(), Mock(), 5)
    ending.take_of_other_host(signal.SIGTERM, again=False)
    ending.take_own(own)
    assert children.stop.call_count == 1
    ending.take_of_other_host(signal.SIGTERM, again=True)
    ending.take_own(own)
    assert children.kill.call_count == 2


def test_those_for_the_workers_end_nothing():
    with StopSignals() as signals:
        send(signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2)
        assert signals.take() == [signal.SIGTERM]
        assert signals.take_for_workers() == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2]
        assert signals.take() == signals.take_for_workers() == []


def test_those_that_the_parent_has_left_blocked_come_too():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with StopSignals() as signals:
            send(signal.SIGTERM)
            assert signals.take(10) == [signal.SIGTERM]
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.sigtimedwait([signal.SIGTERM], 0)  # else a signal that was left blocked would end the tests
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_without_one_it_waits_as_long_as_it_was_told():
    with StopSignals() as signals:
        assert signals.take(0.01) == []


def test_who_blocks_a_signal_to_wait_for_it_in_a_thread_gets_it():
    assert not catches(os.getpid(), signal.SIGUSR2)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
