"""The front door: one OpenAI-compatible endpoint in front of replicas and outside providers."""
