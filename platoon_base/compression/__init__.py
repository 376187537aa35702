"""Lossy codecs for data between hosts, and the residuals that compensate their errors later."""
