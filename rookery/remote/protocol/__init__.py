"""What crosses the wire: messages, plans of calls, the handshake."""
