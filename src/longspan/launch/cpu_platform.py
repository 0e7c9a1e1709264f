"""A vLLM platform plugin that lets the Ray executor run on a machine without accelerators.

vLLM's CPU platform declares no Ray device (`ray_device_key = ""`), so its Ray executor refuses to place ranks.
Ray takes "GPU" as a plain resource that may be declared on any machine; naming it here is all that is missing.
The plugin stays inactive unless `LONGSPAN_DEVICE=cpu` stands in the environment, which only our launcher sets,
and only where the plan says that there is no accelerator.
"""

import os


def activate() -> str | None:
    """The entry point of the group `vllm.platform_plugins`: the platform's class, or None to stay out."""
    if os.environ.get("LONGSPAN_DEVICE") != "cpu":
        return None
    return "longspan.launch.cpu_platform_class.CpuRayPlatform"
