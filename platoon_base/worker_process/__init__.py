"""How the process of a worker starts and ends: its program, the fork server, its failure."""
