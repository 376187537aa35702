"""Data for all workers of a job.

`SharedData` loads a data set once per host, into shared memory. `BatchServer` distributes
mini-batches to the workers. `load_ahead` prepares a worker's next mini-batches in another process.
"""

from platoon_base.data.batch_reader import BatchReader
from platoon_base.data.batch_server import BatchServer
from platoon_base.data.excerpt import excerpt
from platoon_base.data.load_ahead import load_ahead
from platoon_base.data.shared_data import SharedData

__all__ = ["BatchReader", "BatchServer", "SharedData", "excerpt", "load_ahead"]
