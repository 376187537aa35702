"""Lossy codecs for what travels between hosts, and the residuals by which their errors are made up for later."""
