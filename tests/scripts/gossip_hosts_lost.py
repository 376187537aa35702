"""Workers train until a file is there, and end with one model; the test kills hosts and workers meanwhile."""

import sys

from gossip_hosts_head import FOLDER, RULE, end, rank, say, train_until, worker, x

worker.init_shared_params([x], RULE)
say("begins", float(x.mean()))
if sys.argv[2:] == ["fails"] and rank == 2 and not (FOLDER / "failed").exists():
    train_until("fail")
    (FOLDER / "failed").touch()
    raise SystemExit(3)
train_until("enough")
end()
