"""How control messages travel."""
