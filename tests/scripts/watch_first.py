import os
import sys
from pathlib import Path
from platoon_base import connect
from watching import until

folder = Path(sys.argv[1])
with connect() as worker:
    (folder / "new").write_text(os.environ["PLATOON_JOB"])
    (folder / "new").rename(folder / "job")
    until(lambda: (folder / "late").exists() or worker.should_stop)
