"""The benchmark: all methods, on tasks that differ in problem, data and heterogeneity."""
