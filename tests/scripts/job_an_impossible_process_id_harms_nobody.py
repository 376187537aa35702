import os
import sys
import msgspec
import zmq
from platoon_base import connect
from platoon_base.coordination.messages import PROTOCOL

hello = {"type": "hello", "protocol": PROTOCOL, "pid": int(sys.argv[2]), "host": "here", "device": "cpu"}
with connect() as worker, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
    stranger.connect(f"ipc://{os.environ['PLATOON_JOB']}/control")
    stranger.send(b"12345678" + msgspec.msgpack.encode(hello))
    assert stranger.poll(10_000)
    assert msgspec.msgpack.decode(stranger.recv()[8:])["type"] == "failure"
    worker.barrier()
