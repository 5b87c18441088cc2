"""Whose data it is, and how it is dealt out."""
