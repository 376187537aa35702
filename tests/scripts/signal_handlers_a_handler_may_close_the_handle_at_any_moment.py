from job_preamble import ASGD, PlatoonError, connect, np, signal, sys
from interrupting import at_instruction

signal.alarm(120)
calls = {
    "sync_params": lambda: worker.sync_params(),
    "copy_to_local": lambda: worker.copy_to_local(),
    "report": lambda: worker.report({"a": 1}),
    "keep": lambda: worker.keep("a", 1),
    "lock": lambda: worker.lock(),
    "progress": lambda: worker.progress(steps=1),
    "should_stop": lambda: worker.should_stop,
    "stop_reason": lambda: worker.stop_reason,
    "voters": lambda: worker.advanced.stop_votes.voters(),
}
if int(sys.argv[2]) == 1:
    calls["barrier"] = lambda: worker.barrier()
    calls["all_reduce"] = lambda: worker.all_reduce(np.ones(3))
for name, call in calls.items():
    number, came = 1, True
    while came:
        with connect() as worker:
            worker.init_shared_params([np.zeros(100)], ASGD())
            worker.advanced.stop_votes.open(1)
            try:
                came = at_instruction(number, call, worker.close)
                assert worker.closed == came
            except PlatoonError as exc:
                assert worker.closed and any(word in str(exc) for word in ("close", "left")), exc
        number += 23
