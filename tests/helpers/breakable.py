"""A TCP connection that passes through this process, which can hold it up or break it."""

import contextlib
import ctypes
import math
import selectors
import socket
import struct
import threading
import time


class Breakable:
    """Listens at `port`, and passes what comes on to another port of this machine."""

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.passing = threading.Event()  # Cleared, bytes wait as behind a cut cable.
        self.passing.set()
        self.refusing = threading.Event()  # Set, new connections are reset at once, as by a firewall.
        self.bytes_per_s = math.inf  # This limit holds for both ways together.
        self.passed = 0
        self.heard = {}  # It has what each caller has sent, up to 64 KB.
        self._pairs = []
        self._closing = False
        self._forgotten = set()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing:
                for key, _ in selector.select(0.01):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fileobj in self._forgotten:
                        selector.unregister(key.fileobj)
                    elif self.passing.is_set():
                        self._pass(selector, key.fileobj, key.data)
                if not self.passing.is_set():
                    self.passing.wait(0.01)

    def _accept(self, selector):
        one, _ = self._listener.accept()
        if self.refusing.is_set():
            self._reset_at_close(one)
            one.close()
            return
        try:
            other = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            one.close()
            return
        self._pairs.append((one, other))
        self.heard[one] = b""
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)

    def _pass(self, selector, source, target):
        with contextlib.suppress(OSError):
            if data := source.recv(1 << 14):
                target.sendall(data)
                self.passed += len(data)
                if source in self.heard:
                    self.heard[source] += data[: (1 << 16) - len(self.heard[source])]
                time.sleep(len(data) / self.bytes_per_s)
                return
        for end in (source, target):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            end.close()

    def cut(self):
        """Reset all connections, as a firewall does; what is under way is lost."""
        ends = [end for pair in self._pairs for end in pair if end.fileno() >= 0]
        for end in ends:
            self._reset_at_close(end)
        for end in ends:
            with contextlib.suppress(OSError):
                # A connect to no address makes the system reset the connection.
                ctypes.CDLL(None).connect(end.fileno(), bytes(16), 16)

    def forget(self):
        """Pass nothing more of the present connections, as a router that has forgotten them."""
        self._forgotten = {end for pair in self._pairs for end in pair}

    def _reset_at_close(self, end):
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

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
