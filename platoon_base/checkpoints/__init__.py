"""Checkpoints of a job: their files, and the thread of the controller that writes them.

The controller calls `writer`. The launcher and the worker that resumes a center call `files`.
"""
