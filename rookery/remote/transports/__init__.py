"""What carries the messages: threads, Ray actors, NVIDIA FLARE."""
