"""Every decision of a job, without input or output: messages come in, replies and actions go out.

The channels' `server` calls the `Coordinator` with each message, the controller with each worker that has ended.
"""
