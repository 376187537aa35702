"""Calls take turns: threads wait, signal handlers are refused, and an interrupted call frees the way for others."""

import contextlib
import threading

import pytest
from interrupting import at_instruction

from platoon_base.channels.call_lock import CallLock
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError

pytestmark = pytest.mark.base

WAIT_S = 30


@pytest.fixture
def turns():
    return CallLock()


def in_another_thread(call):
    """Return what a call returned or raised in a thread of its own."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except Exception as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return outcome[0]


def enter(turns, timeout_s=0.0):
    with turns.take("other", timeout_s):
        return "entered"


def test_another_thread_waits_for_its_turn(turns):
    waits = threading.Event()

    def wait():
        waits.set()
        with turns.take("other", WAIT_S) as left_s:
            return order.append("other") or left_s

    order, outcome = [], []
    thread = threading.Thread(target=lambda: outcome.append(wait()))
    with turns.take("sync", 1.0):
        thread.start()
        assert waits.wait(WAIT_S)
        order.append("sync")
    thread.join(WAIT_S)
    assert order == ["sync", "other"]
    assert 0 <= outcome[0] <= WAIT_S


def test_another_thread_waits_no_longer_than_it_may(turns):
    with turns.take("sync", 1.0):
        refused = in_another_thread(lambda: enter(turns, timeout_s=0.01))
    assert isinstance(refused, CollectiveTimeoutError)
    assert "other waited 0.01 s for another thread of this process, which is in sync" in str(refused)


def test_a_call_within_a_call_is_refused_and_the_outer_one_goes_on(turns):
    with turns.take("sync", 1.0):
        with pytest.raises(ConfigurationError, match="got other from a signal handler that has interrupted sync"):
            enter(turns)
        assert isinstance(in_another_thread(lambda: enter(turns)), CollectiveTimeoutError)
    assert in_another_thread(lambda: enter(turns)) == "entered"
    assert enter(turns) == "entered"


def interrupt():
    raise KeyboardInterrupt


def interrupted_at(number, turns):
    """Enter, and raise Ctrl-C after so many instructions; tell whether it came that far."""
    try:
        return at_instruction(number, lambda: enter(turns), interrupt, where="call_lock.py")
    except KeyboardInterrupt:
        return True


def test_ctrl_c_at_any_instruction_leaves_the_turn_to_this_thread_and_then_to_others(turns):
    number = 1
    while interrupted_at(number, turns):
        assert enter(turns) == "entered", number
        assert in_another_thread(lambda: enter(turns)) == "entered", number
        number += 1
    assert number > 20


def test_a_signal_handler_at_any_instruction_ends_no_call(turns):
    """Also if a call was refused before, after which the lock is freed as often as it may have been taken."""

    def handle():
        with contextlib.suppress(ConfigurationError):
            enter(turns)

    def call():
        with turns.take("sync", 1.0):
            handle()  # refused

    number = 1
    while at_instruction(number, call, handle, where="call_lock.py"):
        assert in_another_thread(lambda: enter(turns)) == "entered", number
        number += 1
    assert number > 20
