"""What the solvers and the data set share."""
