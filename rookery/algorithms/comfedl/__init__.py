"""ComFedL: its round, and the weights of its robust form."""
