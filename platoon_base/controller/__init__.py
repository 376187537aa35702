"""The controller: the loop that serves requests, and the processes it starts, watches and ends.

The job makes a `Controller`; the launcher names the program that the workers run. `child` and `forkserver_main` are
what the started processes run before the user's script.
"""
