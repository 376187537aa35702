import contextlib
import ctypes
import os
import signal

value = ctypes.c_int(-1)
assert ctypes.CDLL(None).prctl(2, ctypes.byref(value), 0, 0, 0) == 0  # PR_GET_PDEATHSIG
print(value.value, signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM).name)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
for fd in sorted(os.listdir("/proc/self/fd"), key=int):
    with contextlib.suppress(OSError):  # that of the listing
        print(os.readlink(f"/proc/self/fd/{fd}"))
        watched = open(f"/proc/self/fdinfo/{fd}").read().partition("Pid:")[2].split()[:1]
print(watched)
