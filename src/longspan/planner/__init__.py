"""The planner: memory, legality, latency and search. Pure: no clock, no engine, no I/O."""
