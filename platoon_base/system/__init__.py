"""The operating system and the interpreter: files, locks, limits, environment, import hooks."""
