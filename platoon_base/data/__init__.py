"""Data for all workers of a job.

`SharedData` puts a data set once into the memory of a host. `BatchServer` deals mini-batches out to the workers.
`load_ahead` has a process beside each worker make its next mini-batches.
"""

from platoon_base.data.batch_reader import BatchReader
from platoon_base.data.batch_server import BatchServer
from platoon_base.data.excerpt import excerpt
from platoon_base.data.load_ahead import load_ahead
from platoon_base.data.shared_data import SharedData

__all__ = ["BatchReader", "BatchServer", "SharedData", "excerpt", "load_ahead"]
