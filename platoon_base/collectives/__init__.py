"""Collective operations on arrays: every rank of a group makes the same calls in the same order."""
