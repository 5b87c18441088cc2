"""What is solved: losses and their derivatives, which have never heard of clients."""
