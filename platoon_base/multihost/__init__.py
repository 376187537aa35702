"""One job on several hosts: the launcher of host 0 decides, and the launchers of the other hosts relay to it."""
