import os
import sys
import numpy as np
from platoon_base import ASGD, connect
from platoon_base.errors import PlatoonError

TEXT = "caf\udce9"
with connect() as worker:
    worker.report({TEXT: 1.0, "text": TEXT})
    kept = worker.take_kept(TEXT)
    assert kept == (None if os.environ["RUN"] == "0" else {TEXT: [TEXT]}), kept
    worker.keep(TEXT, {TEXT: [TEXT]})
    worker.barrier(TEXT)
    assert worker.reduce_metrics({TEXT: (1.0, 1.0)}) in ({TEXT: 1.0}, {"caf\\udce9": 1.0})
    worker.advanced.require_same(TEXT, TEXT, TEXT)
    worker.all_reduce(np.ones(3))
    worker.init_shared_params([np.zeros(3)], ASGD())
    worker.sync_params()
    worker.progress(steps=1)
    try:
        worker.send_req(TEXT, TEXT)
    except PlatoonError as exc:
        assert "has no handler for requests" in str(exc), exc
    worker.request_stop(TEXT)
    worker.barrier()
    assert worker.stop_reason == "caf\\udce9", worker.stop_reason
    assert [os.fsencode(word) for word in sys.argv[1:]] == [b"caf\xe9"]
