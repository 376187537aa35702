import fcntl
import struct
import sys
import time

file = open(sys.argv[1], "r+b")
lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
print("locked", flush=True)
time.sleep(float(sys.argv[3])) if len(sys.argv) > 3 else sys.stdin.read()
