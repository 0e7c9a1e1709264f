"""How a pre-flight gets to a node that is no plain host: through a Ray that runs, or into its container."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from longspan.cluster.container import Container
from longspan.daemon import reach, starting
from longspan.deployment import NodeSpec
from longspan.errors import HostError
from longspan.host import Completed, Conversation, Host, LocalHost, SlurmHost, SshHost
from longspan.launch import container
from longspan.launch.commands import ray_task
from longspan.launch.container import Job
from longspan.preflight.session import SessionLostError


@dataclass(frozen=True, slots=True)
class RayHost:
    """A node of a Ray that runs already, reached by an actor on it; this machine must belong to that Ray."""

    name: str
    address: str
    ray_address: str

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """See `Host.run`: a task of that Ray, whose own end is waited for up to a minute.

        Raises:
            HostError: also where the command itself failed.
        """
        task, wanted = ray_task(sys.executable, self.ray_address, self.address, argv, env or {}, stdin or "")
        done = LocalHost(self.name).run(task, timeout_seconds=timeout_seconds, stdin=wanted)
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise HostError(f"{self.name} is not reached through Ray: {reason[0]}")
        return done

    def open(self, argv: Sequence[str]) -> Conversation:
        """See `Host.open`."""
        return Conversation(
            [sys.executable, "-m", "longspan.launch.ray_join", "talk", self.ray_address, self.address, *argv]
        )


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """A node whose processes run in a container: the check runs in one of the same kind, which ends with it."""

    name: str
    outer: LocalHost | SshHost | SlurmHost
    image: Container
    model: str

    @property
    def target(self) -> str:
        """What one types after ssh to reach the host."""
        return self.outer.target if isinstance(self.outer, SshHost) else self.name

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """Nothing but a conversation is carried.

        Raises:
            HostError: always.
        """
        raise HostError(f"{self.name} is only reached for a conversation.")

    def open(self, argv: Sequence[str]) -> Conversation:
        """See `Host.open`. A host that is not reached is opened all the same: the end of that conversation tells why in ssh's words.

        Raises:
            SessionLostError: no engine or no image there, with what to do.
        """
        job = Job("check", self.name, f"check-{secrets.token_hex(4)}", "", self.model)
        try:
            said = self.outer.run(container.prepare_command(self.image, job)).stdout
        except HostError:
            return self.outer.open(["true"])
        try:
            job = replace(job, home=starting.home_said(said, self.image))
        except HostError as error:
            raise SessionLostError(
                "container-unusable", error.what.removesuffix("."),
                f"Correct container = … in the cluster file ({self.image.image}), or mend it there as the user that ssh logs in.",
            ) from error  # fmt: skip
        return self.outer.open(container.run_command(self.image, job, argv))


def host_of(node: NodeSpec, ray_address: str | None, model: str = "") -> Host:
    """The door to a node: over ssh, by a job step, in its container, by an actor of a Ray that runs, or this machine."""
    if ray_address and node.is_here:
        return RayHost(node.name, node.address, ray_address)
    outer = reach.host_of(node)
    return (
        ContainerHost(node.name, outer, node.container, model)
        if node.container and not ray_address
        else outer
    )
