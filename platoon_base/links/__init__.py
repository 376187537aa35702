"""Connections between hosts that carry arrays: `stream` has their records, `handshake` opens them."""
