import sys
from platoon_base import connect
from watching import rest

with connect() as worker:
    try:
        open(sys.argv[1], "w").close()
        rest()
    except KeyboardInterrupt:
        print("interrupted:", worker.should_stop, worker.stop_reason, flush=True)
        raise
