from job_preamble import os, worker
import msgspec
import zmq
from platoon_base.coordination.messages import PROTOCOL

HELLO = {"type": "hello", "protocol": PROTOCOL, "host": "here", "device": "cpu"}

folder = os.environ["PLATOON_JOB"]
with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
    socket.linger = 0
    socket.connect(f"ipc://{folder}/control")
    pack, name = msgspec.msgpack.encode, b"12345678"
    frames = [
        [b""],
        [b"\xff"],
        [name],
        [name + b"\xff\xfe"],
        [name + b"{not json"],
        [name, b"2", b"3", b"4"],
        [name + pack({"type": "no such"})],
        [name + pack({"type": "reduce"})],
        [name + b"x" * (1 << 21)],
        [name + pack({"type": "vote", "reason": "a stranger", "policy": "any"})],
        *([name + pack({**HELLO, "pid": pid})] for pid in (0, -1, 2**40)),
    ]
    for message in frames:
        socket.send_multipart(message)
    for message in frames:
        assert socket.poll(10_000), message
        answer = msgspec.msgpack.decode(socket.recv()[8:])
        assert answer["type"] == "failure", (message, answer)
worker.barrier()
assert not worker.should_stop
