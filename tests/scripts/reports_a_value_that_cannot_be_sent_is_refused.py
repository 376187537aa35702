import pytest
from platoon_base import connect
from platoon_base.errors import ProtocolError

worker = connect()
worker.report({"x": 1})
with pytest.raises(ProtocolError, match="ints"):
    worker.report({"x": 2**70})
worker.barrier()
worker.report({"y": 3})
worker.close()
