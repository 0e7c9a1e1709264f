"""No timing decides a test: a shared machine may stall any example."""

from hypothesis import settings

settings.register_profile("planner", deadline=None)
settings.load_profile("planner")
