"""Synchronous training, at the original's address."""
