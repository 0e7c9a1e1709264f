"""The platform class that `cpu_platform` names; apart, because it imports vLLM."""

from vllm.platforms.cpu import CpuPlatform


class CpuRayPlatform(CpuPlatform):  # type: ignore[misc]
    """vLLM's CPU platform with Ray's declared "GPU" resource as its device."""

    ray_device_key = "GPU"
    ray_noset_device_env_vars = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Ours, which knows that ranks can be on several hosts."""
        return "longspan.launch.cpu_communicator.HostAwareCommunicator"
