"""What is going on: telemetry of nodes and engines, the picture of the whole, and the rules that say what is wrong with it."""
