"""How messages travel: threads, Ray actors, NVIDIA FLARE."""
