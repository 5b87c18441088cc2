"""What both sides share: messages, the plan of calls, the handshake."""
