"""The hosts of a job whose launchers an engine has started, such as Slurm or MPI: who is who.

The launcher asks `place`; workers need none of it.
"""
