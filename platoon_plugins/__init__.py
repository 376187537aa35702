"""Adapters of platoon_base, one package for each framework."""
