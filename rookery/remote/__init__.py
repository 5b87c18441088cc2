"""Programs across machines: the words of the language as messages."""
