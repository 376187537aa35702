"""How the process of a worker begins and ends: the program it runs, the fork server, and the error that ends it.

The launcher starts `child`, or asks `forkserver_main` for it, which runs the user's script. When it fails, `failure`
writes down why there, and reads it on the launcher's side.
"""
