"""Where the center lives: shared memory of the host, or the memory of a GPU. A worker's shared parameters call it.

`base` has the protocol of all centers, `host` and `device` have the two back ends. The job chooses one.
"""
