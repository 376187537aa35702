"""Connections between hosts that carry arrays: `stream` has the records, `handshake` opens them."""
