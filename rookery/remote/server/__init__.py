"""The server's side: turns a round into requests, and replies into values."""
