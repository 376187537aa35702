"""The second level of asynchronous training: a process per host averages centers with others."""
