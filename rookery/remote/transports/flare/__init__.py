"""Clients as NVIDIA FLARE sites: parties with certificates."""
