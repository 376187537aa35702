"""The operating system and the interpreter, for all rooms: files, locks, limits, environment, text, import hooks.

Every room may call it. It calls `errors` alone.
"""
