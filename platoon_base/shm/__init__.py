"""The shared memory of a job: segments, and the words by which its processes see each other without a message.

The job makes the segments; workers and the controller read and write the words.
"""
