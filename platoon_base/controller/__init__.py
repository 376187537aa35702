"""The controller: the loop that answers requests and starts, watches and ends the worker processes.

The job creates a `Controller`; the launcher passes the command of the workers. `restart_policy` decides, without
input or output, which workers are restarted.
"""
