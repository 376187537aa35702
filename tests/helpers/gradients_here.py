"""What scripts that average gradients between hosts share: data, and the bytes that this process sends."""

import contextlib
import hashlib
import json
import os
import socket
import struct

import numpy as np

from platoon_base import connect

_BYTES_ACKED = 120  # the offset in struct tcp_info of linux/tcp.h

worker = connect()
rank, size = worker.global_rank, worker.global_size
_random = np.random.default_rng(0)
TEACHER = _random.standard_normal((64, 10))
rows = _random.standard_normal((960, 64)).astype("float32")
labels = (rows @ TEACHER + _random.standard_normal((960, 10))).argmax(axis=1).astype("int32")
mine = slice(rank, None, size)


def sent_bytes():
    """Return what all TCP connections of this process have sent and the other sides received."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, struct.error), socket.socket(fileno=os.dup(int(name))) as sock:
            found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += struct.unpack_from("Q", found, _BYTES_ACKED)[0]
    return total


def say_results(loss, arrays, sent):
    """Write the loss over all rows, the weights' bits, and the bytes sent, for the test."""
    bits = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
    print(json.dumps([float(loss), bits, sent]), flush=True)
