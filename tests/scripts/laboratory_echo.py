import socket

with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.bind(("", 7000))
    print("ready", flush=True)
    while True:
        data, sender = sock.recvfrom(100)
        sock.sendto(data, sender)
