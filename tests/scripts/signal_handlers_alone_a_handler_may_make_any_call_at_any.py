import signal
from interrupting import at_instruction
from platoon_base import connect
from platoon_base.errors import ConfigurationError

signal.alarm(120)
worker = connect()


def handler():
    worker.report({"n": number})
    worker.request_stop("preempted")
    worker.keep("n", number)
    try:
        worker.barrier()
    except ConfigurationError as exc:
        assert "make this call in the training loop" in str(exc), exc
    made.append(number)


for call in (lambda: worker.report({"a": 1}), lambda: worker.barrier(), lambda: worker.request_stop("x")):
    number, made = 1, []
    while at_instruction(number, call, handler):
        assert made.pop() == number
        number += 3
assert worker.should_stop
print("fine")
