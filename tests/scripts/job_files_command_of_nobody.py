import os
import sys
from platoon_base import cli
from platoon_base.cli.commands import clean, jobs  # noqa: F401, this process may not even read the package later

os.setgid(65534), os.setuid(65534)
cli.main(sys.argv[1:])
