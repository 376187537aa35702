"""The memory of the center: shared memory of the host, or that of the GPUs. A worker's shared parameters call it.

`base` has the protocol of all centers, `host` and `device` have the two back ends. The job chooses one.
"""
