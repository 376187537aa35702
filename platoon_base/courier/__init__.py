"""The second level of asynchronous training: a process per host that averages its center with those of other hosts."""
