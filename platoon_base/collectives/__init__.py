"""Collective calls on arrays: through shared memory, by NCCL, or staged through the host; see `Worker.all_reduce`.

`base` has the protocol of all collectives, `groups` forms process groups. The job chooses the back end.
"""
