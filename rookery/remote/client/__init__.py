"""The client's side: answers requests, and keeps its data and memory."""
