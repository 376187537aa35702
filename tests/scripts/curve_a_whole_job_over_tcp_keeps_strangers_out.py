import json
import os
import stat
import numpy as np
from pathlib import Path
from platoon_base import EASGD, connect
from platoon_base.channels.zmq import ZmqClient
from platoon_base.channels.keys import new_keys
from platoon_base.errors import PlatoonError
from platoon_base.coordination.encoding import encode
from platoon_base.coordination.messages import PROTOCOL, Hello

worker = connect()
x = np.full(3, float(worker.global_rank))
worker.init_shared_params([x], EASGD(0.5))
description = Path(os.environ["PLATOON_JOB"], "job.json")
about = json.loads(description.read_text())
assert about["endpoint"].startswith("tcp://127.0.0.1:"), about
assert stat.S_IMODE(description.stat().st_mode) == 0o600
other = new_keys()[1]
hello = encode(Hello(protocol=PROTOCOL, pid=os.getpid(), host="elsewhere", device="cpu"))
stranger = ZmqClient(about["endpoint"], lambda: True, other)
try:
    stranger.request(hello, 0.5)
except PlatoonError:
    pass
else:
    raise AssertionError("a stranger was answered")
finally:
    stranger.close()
assert worker.reduce_metrics({"rank": (float(worker.global_rank), 1.0)}) == {"rank": 1.0}
assert worker.all_reduce(np.ones(2)).tolist() == [3.0, 3.0]
