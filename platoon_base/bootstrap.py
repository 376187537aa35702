"""What a worker process runs: ``python -m platoon_base.bootstrap script.py args`` prepares it, then runs the script."""

from __future__ import annotations

import builtins
import logging
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from platoon_base import compat, device_warnings, own_device
from platoon_base.job import DEVICE, RANK

__all__ = ["main", "put_first_on_path", "run_script", "script_folder", "set_up_logging"]


def main() -> None:
    """Run the script named on the command line as ``python script.py`` would, with the shims it may need."""
    script, *args = sys.argv[1:]
    set_up_logging()
    compat.apply()
    device = os.environ.get(DEVICE, "cpu")
    device_warnings.watch_theano(device)
    own_device.keep_to(device)
    run_script(script, args)


def set_up_logging() -> None:
    """Log to standard error, each line with this worker's rank."""
    rank = os.environ.get(RANK, "-")
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s", force=True
    )


def script_folder(script: str) -> str:
    """Return what ``python script`` puts first on the module search path."""
    return str(Path(script).resolve().parent)


def put_first_on_path(script: str) -> None:
    """Put the script's folder first on the module search path, as ``python script`` does."""
    folder = script_folder(script)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


def run_script(script: str, args: list[str]) -> None:
    """Do in this process what ``python script args`` does; what the script raises comes out.

    Unlike `runpy.run_path` it leaves the script's module in place as ``__main__``, for what runs at the end of the
    process.
    """
    path = os.path.abspath(script)
    loader = SourceFileLoader("__main__", path)
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __loader__=loader, __builtins__=builtins, __package__=None, __cached__=None, __annotations__={}
    )
    sys.argv = [script, *args]
    put_first_on_path(script)
    code = loader.source_to_code(loader.get_data(path), path)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
