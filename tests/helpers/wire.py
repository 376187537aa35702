"""A wire with a delay: frames that one tap device gets are written to the other some milliseconds later.

Usage: wire.py DEVICE DEVICE MILLISECONDS    (prints "ready" once both devices are there)
"""

import collections
import contextlib
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
LONGEST_QUEUE = 20_000  # frames; what comes when it is full is lost, as in a switch
AT_ONCE = 64  # frames read from one device before the other has its turn


def open_tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return fd


def carry(first, second, delay_s):
    ways = {first: (second, collections.deque()), second: (first, collections.deque())}
    poll = select.poll()
    for fd in ways:
        poll.register(fd, select.POLLIN)
    while True:
        now = time.monotonic()
        for to, queue in ways.values():
            while queue and queue[0][0] <= now:
                with contextlib.suppress(OSError):  # the device is down
                    os.write(to, queue.popleft()[1])
        due = [queue[0][0] for _, queue in ways.values() if queue]
        for fd, _ in poll.poll(max(0.0, min(due) - now) * 1000 if due else None):
            queue = ways[fd][1]
            for _ in range(AT_ONCE):
                try:
                    frame = os.read(fd, 65536)
                except OSError:
                    break
                if len(queue) < LONGEST_QUEUE:
                    queue.append((time.monotonic() + delay_s, frame))


if __name__ == "__main__":
    devices = [open_tap(name) for name in sys.argv[1:3]]
    print("ready", flush=True)
    carry(*devices, float(sys.argv[3]) / 1000)
