import sys

assert "mpi4py" not in sys.modules
from mpi4py import MPI  # whoever wants it still has it
from platoon_base import connect

with connect() as worker:
    worker.report({f"rank {worker.global_rank}": MPI.COMM_WORLD.Get_size()})
