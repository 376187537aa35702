"""Collective calls on arrays: over shared memory, NCCL, or staged through the host. A worker's `all_reduce` calls them.

`base` is what every collective offers, `groups` makes and ends a process group; the job chooses the back end.
"""
