"""FeDXL: its round, and the pools of everybody's scores."""
