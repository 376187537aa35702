"""``python -m platoon_base`` is ``platoon``."""

import contextlib
import sys
from pathlib import Path

# `python -m` puts the working directory first on the path: a user's numpy.py would hide NumPy.
# The working directory may have been removed.
with contextlib.suppress(OSError):
    if (
        not getattr(sys.flags, "safe_path", False)
        and Path(sys.path[0]).resolve() == Path.cwd() != Path(__file__).resolve().parents[1]
    ):
        del sys.path[0]

from platoon_base.cli.commands import main

if __name__ == "__main__":
    main()
