from job_preamble import ConfigurationError, np, os, progress, raises, rank, signal, until, waits_in
from job_preamble import worker
from signal_handlers_head import pids

handled = []


def handler(number, frame):
    worker.report({"handled": 1})
    worker.keep("handled", 2)
    worker.progress(steps=1)
    worker.sync_params()
    worker.lock()
    worker.unlock()
    with raises(ConfigurationError, "make this call in the training loop"):
        worker.reduce_metrics({})
    worker.request_stop("preempted")
    handled.append(worker.send_req("x"))


if rank == 0:
    signal.signal(signal.SIGTERM, handler)
    worker.barrier("ready")
    assert worker.advanced.sum_arrays("here", [np.ones(2)]).arrays[0].tolist() == [2, 2]
    assert handled == ["answered"]
else:
    worker.barrier("ready")
    until(lambda: waits_in("here", 0))
    os.kill(pids[0], signal.SIGTERM)
    until(lambda: worker.should_stop)  # while the other still waits
    until(lambda: progress(0).steps == 1)
    worker.advanced.sum_arrays("here", [np.ones(2)])
