"""One rank of one method of benchmarks/hosts_all_reduce.py: does what its parent says over a Unix socket.

Arguments: the method, the parent's socket, this rank, the number of ranks, the address of this host and of the first.
"""

import atexit
import json
import math
import os
import queue
import socket
import sys
import threading
import time

CHUNK = 1 << 19


def openmpi(parent, rank, size, address, first):
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    arrays = lambda count: np.zeros(count, np.float32)  # noqa: E731
    return arrays, lambda x: comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM), comm.Barrier, comm.rank


def gloo(parent, rank, size, address, first):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{first}:29555", rank=rank, world_size=size)
    return (lambda count: torch.zeros(count)), dist.all_reduce, dist.barrier, rank


def tcp(parent, rank, size, address, first):
    """One plain stream between two hosts: each sends half of the array, adds, and sends the sum back; in chunks."""
    import numpy as np

    if rank == 0:
        with socket.create_server((first, 29600)) as server:
            link, _ = server.accept()
    else:
        link = connected(first, 29600)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = queue.SimpleQueue()

    def send():
        while True:
            memory, sent = waiting.get()
            link.sendall(memory)
            if sent is not None:
                sent.set()

    threading.Thread(target=send, daemon=True).start()
    came = np.empty(CHUNK // 4, np.float32)
    room = memoryview(came).cast("B")

    def receive(memory):
        while len(memory):
            count = link.recv_into(memory)
            if not count:
                raise EOFError
            memory = memory[count:]

    def all_reduce(x):
        memory, size_bytes = memoryview(x).cast("B"), x.nbytes
        if size_bytes <= 1 << 16:
            link.sendall(memory)
            receive(room[:size_bytes])
            x += came[: x.size]
            return
        half = size_bytes // 2
        mine, other = (0, half) if rank == 0 else (half, 0)
        for at in range(0, half, CHUNK):
            waiting.put((memory[other + at : other + min(at + CHUNK, half)], None))
        for at in range(0, half, CHUNK):
            count = min(CHUNK, half - at)
            receive(room[:count])
            part = x[(mine + at) // 4 :][: count // 4]
            part += came[: count // 4]
            waiting.put((memory[mine + at : mine + at + count], None))
        receive(memory[other : other + half])
        sent = threading.Event()
        waiting.put((b"", sent))
        sent.wait()

    def barrier():
        link.sendall(b"x")
        receive(room[:1])

    return (lambda count: np.zeros(count, np.float32)), all_reduce, barrier, rank


def connected(host, port):
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Patient:
    """The other ranks all come: the parent ends the others if one dies."""

    def why_absent(self, ranks):
        return ""

    def moved(self, ranks):
        return -math.inf


def platoon(parent, rank, size, address, first, key="5a" * 32):
    import numpy as np

    from platoon_base.collectives.host_exchange import CHUNK_BYTES, GroupSegment
    from platoon_base.collectives.hosts import HostsCollective
    from platoon_base.hosts.world import World
    from platoon_base.links.handshake import Address, Listener, open_links

    each = size // 2
    host, index = divmod(rank, each)
    listener = Listener(address)
    name = f"/platoon-{os.getuid()}-bench{key[:2]}-hosts{host}"
    local = tuple(range(host * each, host * each + each))
    shared = GroupSegment.create(name, local, CHUNK_BYTES) if index == 0 else None
    addresses = parent({"address": [address, listener.address.port, listener.address.token.hex()]})
    shared = shared or GroupSegment.attach(name, local)
    world = World([each, each], host, ["h0", "h1"], [a for a, *_ in addresses[::each]], key)
    other = rank - each if host else rank + each
    there, port, token = addresses[other]
    calls = {other: Address(there, port, bytes.fromhex(token))} if host else {}
    links = open_links(
        listener, rank, bytes.fromhex(key), calls, frozenset(() if host else (other,)), time.monotonic() + 30,
        lambda ranks: None,
    )  # fmt: skip
    listener.close()
    ours = HostsCollective(shared, index, world, range(size), [(1 - host, links[other])], Patient())
    ours.barrier(timeout_s=60)
    ours.unlink()
    atexit.register(ours.close)
    call = lambda x: ours.all_reduce(x, out=x, timeout_s=300)  # noqa: E731
    return (lambda count: np.zeros(count, np.float32)), call, lambda: ours.barrier(timeout_s=300), rank


def plain(*words):
    return platoon(*words, key="")


METHODS = {"tcp": tcp, "gloo": gloo, "openmpi": openmpi, "platoon": platoon, "platoon-plain": plain}


def main():
    method, control, rank, size, address, first = sys.argv[1:7]
    if method == "openmpi":
        rank = os.environ["OMPI_COMM_WORLD_RANK"]
    rank, size = int(rank), int(size)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(control)
    file = sock.makefile("rw")

    def parent(message):
        file.write(json.dumps(message) + "\n")
        file.flush()
        line = file.readline()
        return json.loads(line) if line else sys.exit()

    parent({"rank": rank})
    make, call, barrier, found = METHODS[method](parent, rank, size, address, first)
    if found != rank:
        raise SystemExit("this is another rank than it should be")
    order = parent({"ready": True})
    x = make(0)
    while True:
        count = order["bytes"] // 4
        if len(x) != count:
            x = make(count)
        if order["check"]:
            x[:] = rank + 1
            call(x)
            if not bool((x == size * (size + 1) / 2).all()):
                raise SystemExit(f"{method} gave a wrong sum of {order['bytes']} bytes")
            x[:] = 0
        times = []
        for _ in range(order["runs"]):
            barrier()
            start = time.perf_counter()
            for _ in range(order["repetitions"]):
                call(x)
            times.append((time.perf_counter() - start) / order["repetitions"])
        order = parent({"times": times})


if __name__ == "__main__":
    main()
