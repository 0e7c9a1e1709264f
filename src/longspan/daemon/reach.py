"""How a node is reached: this machine, ssh, or a job step of Slurm."""

import os
from collections.abc import Mapping

from longspan.cluster.slurm import srun_words, step_environment
from longspan.deployment import NodeSpec
from longspan.host import LocalHost, SlurmHost, SshHost


def host_of(
    node: NodeSpec, environment: Mapping[str, str] = os.environ, more: Mapping[str, str] | None = None
) -> LocalHost | SshHost | SlurmHost:
    """The door to a node of the deployment.

    Args:
        environment: ours, which srun hands on. more: added to it; ssh takes none of either.
    """
    if node.ssh is not None:
        return SshHost(node.name, node.ssh)
    if node.slurm is not None:
        return slurm_host(node.name, node.slurm, environment, more)
    return LocalHost(node.name)


def slurm_host(
    name: str, step: str, environment: Mapping[str, str] = os.environ, more: Mapping[str, str] | None = None
) -> SlurmHost:
    """A node of an allocation; `step` as in `deployment.NodeSpec.slurm`."""
    return SlurmHost(name, tuple(srun_words(step, name)), {**step_environment(environment), **(more or {})})
