import os
import sys
from platoon_base import cli
from platoon_base.cli.commands import clean, jobs  # noqa: F401, this process may not even read the package later

user, *command = sys.argv[1:]
os.setgid(int(user)), os.setuid(int(user))
cli.main(command)
