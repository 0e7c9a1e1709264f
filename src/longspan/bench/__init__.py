"""Load tests: the load, a client that measures itself, statistics, and results that can be compared."""
