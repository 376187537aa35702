import os
import signal
import sys
import time

signal.signal(signal.SIGINT, signal.SIG_IGN)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
