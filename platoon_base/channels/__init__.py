"""The channels of the control plane: requests of workers and answers, over ZeroMQ or in-process."""
