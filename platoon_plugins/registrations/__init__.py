"""The registrations of the adapters' frameworks; importing them imports neither an adapter nor a framework."""
