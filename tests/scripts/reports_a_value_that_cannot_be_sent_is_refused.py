from job_preamble import ProtocolError, worker
import pytest

worker.report({"x": 1})
with pytest.raises(ProtocolError, match="ints"):
    worker.report({"x": 2**70})
worker.barrier()
worker.report({"y": 3})
worker.close()
