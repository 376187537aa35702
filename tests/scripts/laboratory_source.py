import socket
import time

with socket.create_connection(("h1", 7000)) as connection:
    began = time.monotonic()
    connection.sendall(bytes(10_000_000))
    connection.recv(1)
    print(time.monotonic() - began)
