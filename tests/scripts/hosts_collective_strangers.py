import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
from pretended_hosts import rank, size, worker
from platoon_base.links import handshake

FOLDER = Path(sys.argv[1])
first = handshake.Listener.__init__
stop = threading.Event()
sent = []


def listen(listener, host):
    first(listener, host)
    (FOLDER / f"port-{listener.address.port}").touch()
    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    while len(sent) < 20 and disturbing.is_alive():
        time.sleep(0.001)


def disturb():
    while not stop.is_set():
        for path in FOLDER.glob("port-*"):
            try:
                with socket.create_connection(("127.0.0.1", int(path.name[5:])), 0.2) as sock:
                    sock.sendall((b"PLTNLNK2" if len(sent) % 2 else b"GET / HTT") + bytes(500))
                sent.append(path)
            except OSError:
                pass


handshake.Listener.__init__ = listen
for _ in range(20):
    assert (worker.all_reduce(np.full(100_000, rank, np.float32)) == sum(range(size))).all()
stop.set()
assert rank == 1 or len(sent) >= 20
worker.close()
