"""Prometheus: its round, and the graphs on which its agents mix."""
