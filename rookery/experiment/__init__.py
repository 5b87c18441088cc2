"""Experiments as TOML files: read, built, run, tuned."""
