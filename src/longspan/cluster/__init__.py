"""Clusters: nodes, their GPUs and what links them."""
