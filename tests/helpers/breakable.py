"""A TCP connection that passes through this process, which can hold it up or break it."""

import contextlib
import math
import selectors
import socket
import struct
import threading
import time


class Breakable:
    """Listens at `port`, and passes what comes on to another port of this machine.

    Attributes
    ----------
    port : int
    passing : threading.Event
        Set while bytes pass; cleared they are swallowed by nobody and wait, as behind a cut cable.
    refusing : threading.Event
        Set while new connections are reset at once, as by a firewall.
    bytes_per_s : float
        At most so many pass, both ways together.
    passed : int
        How many have, both ways together.
    """

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.passing = threading.Event()
        self.passing.set()
        self.refusing = threading.Event()
        self.bytes_per_s = math.inf
        self.passed = 0
        self._pairs = []
        self._closing = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing:
                for key, _ in selector.select(0.01):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif self.passing.is_set():
                        self._pass(selector, key.fileobj, key.data)
                if not self.passing.is_set():
                    self.passing.wait(0.01)

    def _accept(self, selector):
        one, _ = self._listener.accept()
        if self.refusing.is_set():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
            return
        try:
            other = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            one.close()
            return
        self._pairs.append((one, other))
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)

    def _pass(self, selector, source, target):
        with contextlib.suppress(OSError):
            if data := source.recv(1 << 14):
                target.sendall(data)
                self.passed += len(data)
                time.sleep(len(data) / self.bytes_per_s)
                return
        for end in (source, target):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            end.close()

    def cut(self):
        """End all connections; what is under way is lost."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._closing = True
        self._thread.join()
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()
