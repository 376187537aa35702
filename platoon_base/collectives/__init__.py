"""Collective calls on arrays: through shared memory, by NCCL, or staged through the host."""
