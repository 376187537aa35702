import os
import resource
import time
from platoon_base.links.handshake import Address, Caller, Listener, Opening

listener = Listener("127.0.0.1")
opening = Opening(listener, Caller(0, bytes(32), frozenset({1})), {})
caller = Listener("127.0.0.1")
calling = Opening(caller, Caller(1, bytes(32), frozenset()), {0: listener.address})
calling.step(time.monotonic())
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
opening.call(5, Address("127.0.0.1", 9, b""))
steps, until = 0, time.monotonic() + 0.5
while time.monotonic() < until:
    opening.step(until)
    steps += 1
assert steps < 100, steps
assert not opening.open
assert "Too many open files" in opening.why(), opening.why()
for fd in taken:
    os.close(fd)
until = time.monotonic() + 20
while 1 not in opening.open or 0 not in calling.open:
    assert time.monotonic() < until
    opening.step(time.monotonic() + 0.01)
    calling.step(time.monotonic() + 0.01)
