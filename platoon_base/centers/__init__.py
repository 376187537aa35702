"""Where the center lives: shared memory of the host, or the memory of a GPU. A worker's shared parameters call it.

`base` is what every center offers, `host` and `device` are the two that there are; the job chooses one.
"""
