from job_preamble import ConfigurationError, join_late, late, worker
from platoon_base.worker import start_training

if late:
    try:
        start_training(worker, "main loop 1", "main loop")
    except ConfigurationError as exc:
        worker.report({"late": str(exc)})
else:
    join_late()
    assert start_training(worker, "main loop 1", "main loop") == [0]
