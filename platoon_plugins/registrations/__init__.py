"""Registrations of the adapters' frameworks; importing this package imports neither an adapter nor a framework."""
