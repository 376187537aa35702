"""What a worker process runs: ``python -m platoon_base.bootstrap script.py args`` prepares it, then runs the script.

``-m package.module args`` takes the place of a script as it does for Python.
"""

from __future__ import annotations

import logging
import os
import sys

from platoon_base import compat, device_warnings, own_device
from platoon_base.job import DEVICE, RANK
from platoon_base.program import Program

__all__ = ["main", "set_up_logging"]


def main() -> None:
    """Run what the command line names as ``python`` would, with the shims it may need."""
    program, args = Program.of(sys.argv[1:])
    set_up_logging()
    compat.apply()
    device = os.environ.get(DEVICE, "cpu")
    device_warnings.watch_theano(device)
    own_device.keep_to(device)
    program.run(args)


def set_up_logging() -> None:
    """Log to standard error, each line with this worker's rank."""
    rank = os.environ.get(RANK, "-")
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s", force=True
    )


if __name__ == "__main__":
    main()
