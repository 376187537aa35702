"""``python -m platoon_base`` is ``platoon``."""

import sys
from pathlib import Path

# `python -m` puts the working directory first on the path: a user's numpy.py would be imported in place of NumPy.
if Path(sys.path[0]).resolve() == Path.cwd() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from platoon_base.cli.commands import main

if __name__ == "__main__":
    main()
