from job_preamble import EASGD, np, os, sys, worker
import random
import msgspec
import zmq
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import encode


def bad(rng, rank):
    valid = [
        msg.Hello(protocol=msg.PROTOCOL, pid=4711, host="x", device="cpu", rank=rank),  # has joined already
        msg.Hello(protocol=msg.PROTOCOL + 1, pid=4711, host="x", device="cpu"),
        msg.InitCenter(specs=[("W", (10**12,), "float64")], rule="EASGD(alpha=0.5)"),  # 8 TB
        msg.CenterReady(),
        msg.Barrier(name="barrier", timeout_s=1e9),
        msg.Leave(),
        msg.Report(metrics={"center": 1.0}),
        msg.StopVote(reason="a stranger's"),
        msg.UserRequest(req="platoon-init"),
    ]
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.choice([0, 1, 7, 8, 9, 60, 5000]))
    data = encode(rng.choice(valid))
    if kind == 1:
        data = data[: rng.randrange(len(data))]
    if kind == 2 and rng.random() < 0.02:
        data += bytes(1 << 21)
    return rng.randbytes(8) + data


x = np.linspace(0, 1, 100_000)
worker.barrier("both are here")
if worker.global_rank == 1 and len(sys.argv) > 2:
    rng = random.Random(7)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{os.environ['PLATOON_JOB']}/control")
        for number in range(10_000):
            socket.send(bad(rng, rank=0))
            if number % 100 == 99:
                for _ in range(100):
                    assert socket.poll(20_000)
                    answer = msgspec.msgpack.decode(socket.recv()[8:])
                    assert answer["type"] == "failure", answer
if worker.global_rank == 0:
    worker.init_shared_params([x], EASGD(0.3))
    rng = np.random.default_rng(3)
    for _ in range(300):
        x += rng.standard_normal(x.shape)
        worker.sync_params()
    worker.copy_to_local()
    np.save(f"{sys.argv[1]}/center{len(sys.argv)}.npy", x)
    assert not worker.should_stop
worker.barrier("both have ended")
