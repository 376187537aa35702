"""Registrations of the adapters' frameworks; importing it imports no adapter and no framework."""
