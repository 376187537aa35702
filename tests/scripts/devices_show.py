import os
from platoon_base import connect
from platoon_base.job.files import JobFiles

center = JobFiles.read(os.environ["PLATOON_JOB"]).center_memory
flags, cache = os.environ.get("THEANO_FLAGS"), os.environ.get("GPUARRAY_CACHE_PATH")
with connect() as worker:
    print(f"{worker.device} THEANO_FLAGS:{flags} center:{center} GPUARRAY_CACHE_PATH:{cache}", flush=True)
