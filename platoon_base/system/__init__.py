"""The operating system and the interpreter, for all rooms: files, locks, limits, environment, text, import hooks."""
