"""Collective calls on arrays: over shared memory, NCCL, or staged through the host. A worker's `all_reduce` calls them.

`base` has the protocol of all collectives, `groups` forms process groups. The job chooses the back end.
"""
