"""ADBO: its iteration, ADMM on the inner problem, and its cutting planes."""
