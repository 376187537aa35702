"""Cases of scripts with loops of JAX, which tests run on the host and on devices."""

# The case of `array_loops_errors`, and the error that it raises.
ERRORS_WITHIN_STEPS = [
    ("sync", "WorkerLostError"),
    ("async", "NonFiniteError"),
    ("negative weight", "ConfigurationError"),
    ("weight of nan", "ConfigurationError"),
]
