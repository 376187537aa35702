import os
import socket
import sys

for data in (b"", os.urandom(100), os.urandom(100_000)):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1) as connection:
            connection.sendall(data)
    except OSError:
        pass
