"""All-reduce (float32, sum, in place) over two hosts: ours, encrypted and not, gloo, OpenMPI and one plain TCP stream.

Hosts are network namespaces of this machine, with 2 ranks each (plain TCP: 1), so it needs root. All methods' processes
live at the same time and take turns; the time of a call is that of its slowest rank.

    python benchmarks/hosts_all_reduce.py [--quick] [--torch .nox/keras3/bin/python]
"""

import atexit
import contextlib
import functools
import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path

import harness

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20]  # bytes
LINKS = {"unlimited": None, "1 Gbit/s": "1gbit"}
RANKS = {"platoon": 4, "platoon-plain": 4, "gloo": 4, "openmpi": 4, "tcp": 2}
ROUND_S = 0.1  # that the calls of one method take in one round, about
START_S, CHUNK = 60, 1 << 19


# The ranks: each method returns how to make an array, the call, a barrier, and its rank.
def numpy_zeros(count):
    import numpy as np

    return np.zeros(count, np.float32)


def openmpi(parent, rank, size, address, first):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return numpy_zeros, lambda x: comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM), comm.Barrier, comm.rank


def gloo(parent, rank, size, address, first):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{first}:29555", rank=rank, world_size=size)
    return torch.zeros, dist.all_reduce, dist.barrier, rank


def tcp(parent, rank, size, address, first):
    """One plain stream between two hosts: each sends half of the array, adds, and sends the sum back; in chunks."""
    if rank == 0:
        with socket.create_server((first, 29600)) as server:
            link = server.accept()[0]
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
    came = numpy_zeros(CHUNK // 4)
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

    return numpy_zeros, all_reduce, barrier, rank


def connected(host, port):
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def platoon(parent, rank, size, address, first, key="5a" * 32):
    from platoon_base.collectives.host_exchange import CHUNK_BYTES, GroupSegment
    from platoon_base.collectives.hosts import HostsCollective
    from platoon_base.hosts import World
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
    called, deadline = frozenset(() if host else (other,)), time.monotonic() + 30
    links = open_links(listener, rank, bytes.fromhex(key), calls, called, deadline, lambda ranks: None)
    listener.close()
    ours = HostsCollective(shared, index, world, range(size), [(1 - host, links[other])], harness.Patient())
    ours.barrier(timeout_s=60)
    ours.unlink()
    atexit.register(ours.close)
    call = lambda x: ours.all_reduce(x, out=x, timeout_s=300)  # noqa: E731
    return numpy_zeros, call, lambda: ours.barrier(timeout_s=300), rank


METHODS = {"tcp": tcp, "gloo": gloo, "openmpi": openmpi, "platoon": platoon}
METHODS["platoon-plain"] = functools.partial(platoon, key="")


def work(given):
    rank, size = int(os.environ.get("OMPI_COMM_WORLD_RANK", given.rank)), given.size
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(given.control)
    file = sock.makefile("rw")

    def parent(message):
        file.write(json.dumps(message) + "\n")
        file.flush()
        line = file.readline()
        return json.loads(line) if line else sys.exit()

    parent({"rank": rank})
    make, call, barrier, found = METHODS[given.method](parent, rank, size, given.address, given.first)
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
                raise SystemExit(f"{given.method} gave a wrong sum of {order['bytes']} bytes")
            x[:] = 0
        times = []
        for _ in range(order["runs"]):
            barrier()
            times.append(harness.seconds(lambda a=x: call(a), order["repetitions"]))
        order = parent({"times": times})


# The benchmark.
class Method:
    """The processes of one method of `RANKS` on two hosts; ``torch`` is the interpreter that has torch."""

    def __init__(self, name, hosts, folder, torch):
        self.name, self.ranks, self._files = name, RANKS[name], {}
        control = folder / name
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(control))
        server.listen(self.ranks)
        server.settimeout(START_S)
        self._processes = self._start(hosts, folder, str(control), torch)
        try:
            with server:
                for _ in range(self.ranks):
                    with server.accept()[0] as sock:
                        file = sock.makefile("rw")
                    self._files[json.loads(file.readline())["rank"]] = file
            self._send({})
            if name.startswith("platoon"):
                self._send([answer["address"] for answer in self._answers()])
            self._answers()
        except BaseException:
            self.close()
            raise

    def _start(self, hosts, folder, control, torch):
        env = {**os.environ, "PYTHONPATH": str(harness.ROOT), "GLOO_SOCKET_IFNAME": "eth0"}
        python = torch if self.name == "gloo" else sys.executable
        first, each = hosts.all[0].address, self.ranks // 2
        values = {"method": self.name, "control": control, "size": self.ranks, "first": first, "folder": str(folder)}

        def start(begin, rank, address, words=()):
            mine = {**env, harness.GIVEN: json.dumps({**values, "rank": rank, "address": address})}
            return subprocess.Popen([*begin, *words, python, __file__], env=mine, stdin=subprocess.DEVNULL)

        if self.name == "openmpi":
            # mpirun has a host of its own, from which it reaches the others; its own names are theirs.
            mca = {"plm_rsh_agent": hosts.agent(folder), "plm_rsh_no_tree_spawn": 1, "btl": "tcp,vader,self"}
            mca |= {"btl_vader_single_copy_mechanism": "none", "mpi_yield_when_idle": 1}
            mca |= dict.fromkeys(("btl_tcp_if_include", "oob_tcp_if_include"), "10.78.0.0/24")
            words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-H", "h0:2,h1:2", "--bind-to", "none"]
            words += [str(word) for name, value in mca.items() for word in ("--mca", name, value)]
            return [start(hosts.login(), 0, "-", [*words, "-x", "PYTHONPATH", "-x", harness.GIVEN])]
        places = [hosts.all[rank // each] for rank in range(self.ranks)]
        return [start(host.enter(), rank, host.address) for rank, host in enumerate(places)]

    def _send(self, message):
        for file in self._files.values():
            file.write(json.dumps(message) + "\n")
            file.flush()

    def _answers(self):
        lines = [self._files[rank].readline() for rank in sorted(self._files)]
        if not all(lines):
            sys.exit(f"a process of {self.name} has ended")
        return [json.loads(line) for line in lines]

    def measure(self, size, runs, repetitions, check=False):
        self._send({"bytes": size, "runs": runs, "repetitions": repetitions, "check": check})
        return [max(times) for times in zip(*(answer["times"] for answer in self._answers()))]

    def close(self):
        for file in self._files.values():
            file.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


def times_of(methods, size, seconds):
    calls, a_round = {}, 0.0
    for method in methods:
        method.measure(size, 1, 1, check=True)
        took = min(method.measure(size, 2, 1 if size > 1 << 20 else 5))
        repetitions = max(1, int(ROUND_S / took))
        a_round += took * repetitions
        calls[method.name] = lambda m=method, r=repetitions: m.measure(size, 1, r)[0]
    return harness.interleaved(calls, max(5, int(seconds / a_round)))


def run(options, names):
    import namespaces

    results = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(namespaces.Hosts(2))
        methods = [Method(name, hosts, folder, options.torch) for name in names]
        for method in methods:
            stack.callback(method.close)
        for link in options.links:
            hosts.limit(LINKS[link])
            for size in options.sizes:
                times = times_of(methods, size, 2.0 if options.quick else 20.0)
                row = {"link": link, "bytes": size, "rounds": len(times[names[0]])}
                row |= {f"{name} ms": 1e3 * harness.median(values) for name, values in times.items()}
                for name in names if "platoon" in names else ():
                    if name != "platoon":
                        row[f"/ {name}"] = harness.ratio(times["platoon"], times[name])
                results.append(row)
    harness.table("All-reduce over two hosts; medians; platoon's time over that of others", results, 200)
    return results


def measure():
    import namespaces

    python = str(harness.ROOT / ".nox/keras3/bin/python")
    options = harness.options(__doc__, torch=python, methods=(*RANKS,), links=(*LINKS,), sizes=SIZES)
    if namespaces.problem():
        print(f"skipped: {namespaces.problem()}")
        return
    here = {"openmpi": shutil.which("mpirun"), "gloo": Path(options.torch).exists()}
    names = [name for name in options.methods if here.get(name, True)]
    if len(names) < len(options.methods):
        print(f"left out, as mpirun or {options.torch} is missing: {sorted({*options.methods} - {*names})}")
    results = run(options, names)
    of = {(row["link"], row["bytes"]): row for row in results}
    goals = [("1 Gbit/s", mb << 20, *goal) for mb in (16, 128) for goal in (("tcp", 1.05), ("gloo", 1 / 1.4))]
    goals += [("unlimited", 128 << 20, "gloo", 1.0), ("unlimited", 128 << 20, "openmpi", 1.0)]
    for link, size, name, most in [*goals, ("unlimited", 4 << 10, "openmpi", 1.3)]:
        if f"/ {name}" in of.get((link, size), {}):
            harness.goal(f"{link}, {size >> 10} KB, time over {name}'s", of[link, size][f"/ {name}"], most, False)
    reference = {"mpi4py": metadata.version("mpi4py") if here["openmpi"] else None, "torch": options.torch}
    harness.save("hosts_all_reduce", {"reference": reference, "results": results}, options)


if __name__ == "__main__":
    harness.main(measure, work)
