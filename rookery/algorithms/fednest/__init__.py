"""FedNest and its light relatives: one file for each procedure of the paper."""
