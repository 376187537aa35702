"""Calls in the midst of another call: as a signal handler or Ctrl-C makes them, or as another process looks."""

import contextlib
import sys

__all__ = ["at_each_instruction", "at_instruction"]


@contextlib.contextmanager
def _tracing(trace):
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def at_instruction(number, call, then, where="platoon_base"):
    """Make a call, and within it, after so many instructions of the files named, another, as a signal handler does.

    Returns whether the call came that far.
    """
    left = number

    def count(frame, event, arg):
        nonlocal left
        if where not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                then()
        return count

    with _tracing(count):
        call()
    return left <= 0


def at_each_instruction(call, look):
    """Make a call, and another before each of its instructions, as another process may look at any moment."""

    def trace(frame, event, arg):
        frame.f_trace_opcodes = True
        look()
        return trace

    with _tracing(trace):
        call()
