"""The run loop, what it measures and what it keeps."""
