"""Connections between hosts that carry arrays."""
