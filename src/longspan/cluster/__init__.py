"""Clusters: nodes, their GPUs, links and networks."""
