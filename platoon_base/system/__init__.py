"""What all rooms ask of the operating system and the interpreter: files, locks, environment, text, import hooks."""
