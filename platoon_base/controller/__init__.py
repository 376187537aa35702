"""The controller: answers requests, and starts, watches and stops the worker processes."""
