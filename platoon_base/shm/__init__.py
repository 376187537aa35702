"""The shared memory of a job: segments, and the state that its processes share without messages.

The job makes the segments; workers and the controller read and write the state.
"""
