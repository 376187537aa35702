import fcntl
import sys

with open(sys.argv[1], "r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    input()
