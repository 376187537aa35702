import os
import signal

if not os.path.exists("again"):
    open("again", "w").close()
    print("words of the first")
os.kill(os.getpid(), signal.SIGKILL)
