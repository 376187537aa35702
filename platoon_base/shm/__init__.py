"""The shared memory of a job: segments, and the state by which its processes see each other without a message.

The job makes the segments; workers and the controller read and write the state.
"""
