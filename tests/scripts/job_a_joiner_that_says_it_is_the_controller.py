from job_preamble import connect, os
import msgspec
import zmq
from platoon_base.coordination.messages import PROTOCOL

hello = {"type": "hello", "protocol": PROTOCOL, "pid": os.getppid(), "host": "here", "device": "cpu"}
hello["pid_namespace"] = os.stat("/proc/self/ns/pid").st_ino
with connect() as worker, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
    stranger.connect(f"ipc://{os.environ['PLATOON_JOB']}/control")
    stranger.send(b"12345678" + msgspec.msgpack.encode(hello))
    assert stranger.poll(10_000)
    stranger.recv()
    worker.reduce_metrics({"x": (1.0, 1.0)})  # it is gone, and so nobody waits for it
