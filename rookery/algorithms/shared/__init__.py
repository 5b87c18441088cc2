"""What the algorithms of at least two papers use."""
