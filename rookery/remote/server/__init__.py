"""The server's side: words become requests, and replies become values."""
