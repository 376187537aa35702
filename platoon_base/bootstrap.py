"""What a worker process runs: ``python -m platoon_base.bootstrap script.py args`` prepares the process, then the script."""

from __future__ import annotations

import logging
import os
import runpy
import sys
from pathlib import Path

from platoon_base import compat
from platoon_base.job import RANK


def main() -> None:
    """Run the script named on the command line as ``python script.py`` would, with the shims it may need."""
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    rank = os.environ.get(RANK, "-")
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s")
    compat.apply()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
