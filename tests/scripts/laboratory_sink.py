import socket

with socket.create_server(("", 7000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    left = 10_000_000
    while left:
        left -= len(connection.recv(1 << 20))
    connection.sendall(b"x")
    connection.close()
