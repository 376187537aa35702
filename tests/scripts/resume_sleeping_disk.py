import os
import threading
from platoon_base.cli import main

answer = os.fsync


def fsync(fd):
    if "unfinished-checkpoint" in os.readlink(f"/proc/self/fd/{fd}"):
        threading.Event().wait()
    answer(fd)


os.fsync = fsync
main()
