"""One job on several hosts: host 0's launcher decides, the other launchers relay to it."""
