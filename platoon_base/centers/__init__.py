"""The center's back ends: in shared memory of the host, or in the memory of GPUs.

`base` has the protocol of all centers, `host` and `device` have the two back ends. The job chooses one.
"""
