"""Where the center lives."""
