"""The controller: the loop that serves requests, and the processes it starts, watches and ends.

The job makes a `Controller`; the launcher names the program that the workers run. The `restart_policy` decides, without
input or output, which workers are started again.
"""
