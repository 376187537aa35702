import os
import resource

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
assert max(opened) > 1023
from platoon_base.cli import main

main(["launch", "-n", "2", "--log-dir", "logs", "--checkpoint-every", "60", "--resume", "kept", "script.py"])
