"""Launching: wanted + observed -> actions (pure), commands (pure), and the few doors to Ray and vLLM."""
