import os
import socket
import sys
import time

GREETING = b"PLTNLNK2" + os.urandom(32) + bytes([7] + [0] * 7)  # of one that has not the key
kept = []
print("up", flush=True)
end = time.monotonic() + 4
while time.monotonic() < end:
    for data in (
        b"",
        os.urandom(3000),
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff" + bytes(8) + b"\x7f\x03" + bytes(53),
        GREETING,
    ):
        try:
            connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)
            connection.sendall(data)
            kept.append(connection)
        except OSError:
            time.sleep(0.01)
    if len(kept) > 400:
        for connection in kept[:200]:
            connection.close()
        del kept[:200]
print("tried", flush=True)
