import os
import sys
from platoon_base import cli

os.setgid(65534), os.setuid(65534)
cli.main(sys.argv[1:])
