"""FedMSA, and the choices it leaves open: where it starts and which iterate it returns."""
