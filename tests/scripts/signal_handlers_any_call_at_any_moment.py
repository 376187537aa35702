from job_preamble import ConfigurationError, rank, worker
from interrupting import at_instruction
import signal_handlers_head  # noqa: F401 - shares parameters

calls = {
    "sync_params": lambda: worker.sync_params(),
    "copy_to_local": lambda: worker.copy_to_local(),
    "send_req": lambda: worker.send_req("x"),
    "report": lambda: worker.report({"a": 1}),
    "lock": lambda: (worker.lock(), worker.unlock()),
    "progress": lambda: worker.progress(steps=1),
}


def handler():
    for call in calls.values():
        try:
            call()
        except ConfigurationError as exc:
            assert "make this call in the training loop" in str(exc), exc
    made.append(number)


for interrupted in calls.values():
    number, made = 1, []
    while at_instruction(number, interrupted, handler):
        assert made.pop() == number
        number += 29
other = [r for r in range(worker.global_size) if r != rank]
worker.barrier()
worker.sync_params(timeout_s=1)  # no stripe is left locked
worker.barrier()
worker.lock(timeout_s=10)
worker.unlock()
