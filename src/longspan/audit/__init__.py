"""The production checklist, run instead of read: facts of a running deployment -> findings."""
