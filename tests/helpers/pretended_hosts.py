"""What scripts import whose job is on one host: each rank takes itself to be on one of several.

The host's own launcher, controller and liveness are real, so are the links; hosts have shared memory of their own.
PRETENDED holds the number of workers on each host; PRETENDED_KEYS a data key for each host, instead of one for all;
PRETENDED_BACKEND what adds large arrays over the hosts; PRETENDED_COMPRESSION the codec between them.
"""

import os
from pathlib import Path

import msgspec

from platoon_base import connect
from platoon_base.hosts import World
from platoon_base.job.files import JobFiles, segment_prefix
from platoon_base.shm.segments import HiddenName

workers = [int(word) for word in os.environ["PRETENDED"].split("+")]
keys = os.environ.get("PRETENDED_KEYS", "5c" * 32).split(",") * len(workers)
hosts = len(workers)
first = World(workers, 0, [f"h{i}" for i in range(hosts)], ["127.0.0.1"] * hosts)
here = first.host_of(int(os.environ["PLATOON_RANK"]))
world = msgspec.structs.replace(
    first,
    host=here,
    data_key=keys[here],
    compression=os.environ.get("PRETENDED_COMPRESSION", "none"),
)
read = JobFiles.read


def read_as_of_this_host(folder):
    return msgspec.structs.replace(read(folder), world=world)


def collective_of_this_host(files):
    name = f"memory-collective{here}"
    return HiddenName(Path(files.folder, name), f"{segment_prefix()}{files.job}-collective{here}")


JobFiles.read = staticmethod(read_as_of_this_host)
JobFiles.collective = property(collective_of_this_host)

worker = connect()
rank, size = worker.global_rank, worker.global_size
