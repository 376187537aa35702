import os
import subprocess
import sys
from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_base.worker import start_training

late = "PLATOON_RANK" not in os.environ
with connect() as worker:
    if late:
        try:
            start_training(worker, "main loop 1", "main loop")
        except ConfigurationError as exc:
            worker.report({"late": str(exc)})
    else:
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        assert start_training(worker, "main loop 1", "main loop") == [0]
