"""The operating system and the interpreter: files, locks, limits, environment, text, import hooks.

All packages may import it. It imports only `errors`.
"""
