"""The hosts of a job whose launchers an engine, such as Slurm or MPI, has started."""
