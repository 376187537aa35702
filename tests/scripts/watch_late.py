import os
import signal
import sys
from pathlib import Path
from platoon_base import connect
from watching import until

folder, way = Path(sys.argv[1]), sys.argv[2]
got = []
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
worker = connect()
(folder / "late").touch()
if way == "stays":
    until((folder / "launcher is gone").exists)
    (folder / "got").write_text(f"signals {got}")
if way == "dies":
    os._exit(0)
worker.close()
