"""Back ends of the center: in shared memory of the host, or in the memory of GPUs."""
