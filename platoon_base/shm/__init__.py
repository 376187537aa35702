"""Shared memory of a job: segments, and the state its processes share without messages."""
