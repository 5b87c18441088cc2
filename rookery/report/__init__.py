"""Curves, tables and pages from histories."""
