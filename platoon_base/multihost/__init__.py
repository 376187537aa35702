"""One job on several hosts: the launcher of the first host decides, and those of the others relay to it."""
