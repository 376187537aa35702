"""Checkpoints of a job: their files, and the thread of the controller that writes them."""
