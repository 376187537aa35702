import signal
import sys

print("platoon_base.worker_process.forkserver_main" in sys.modules)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
