"""Another call after so many instructions of one, as a signal handler makes it, or Ctrl-C."""

import sys


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

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0
