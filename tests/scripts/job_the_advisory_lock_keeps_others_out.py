import sys
from pathlib import Path
from platoon_base import connect

counter = Path(sys.argv[1]) / "counter"
counter.touch()
with connect() as worker:
    worker.barrier()
    for _ in range(200):
        worker.lock()
        try:
            counter.write_text(str(int(counter.read_text() or 0) + 1))
        finally:
            worker.unlock()
