import os
import socket
import sys
import time

address, data = ("127.0.0.1", int(sys.argv[1])), bytes.fromhex(sys.argv[2])
held, next_at = [], 0.0
while os.getppid() == int(sys.argv[3]):
    next_at = max(next_at + 1 / 3000, time.monotonic() - 0.01)  # 3,000 in a second
    time.sleep(max(0.0, next_at - time.monotonic()))
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(address)
    held.append(sock)
    try:
        sock.send(data)
    except OSError:
        pass
    if len(held) == 400:
        print(len(held), flush=True)
    if len(held) > 400:
        held.pop(0).close()
