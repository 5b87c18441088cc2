"""The client's side: it answers requests and keeps its data and memory."""
