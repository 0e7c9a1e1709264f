"""Longspan serves one large language model across many GPUs and machines, and proves that it works."""

__version__ = "0.1.0"
