"""Clients as Ray actors: one owner's machines."""
