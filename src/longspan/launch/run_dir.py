"""The files and ports of one start of a deployment; the files lie in a short-lived directory, the same on every node."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things lie; the same on every node.

    Attributes:
        run_dir: short-lived files of this start (Ray's temporary directory, tokens); removed by `down`.
        gateway_config: on the controller's machine.
    """

    run_dir: str
    gateway_config: str

    @property
    def ray_token(self) -> str:
        """Ray's cluster token, mode 0600."""
        return f"{self.run_dir}/ray-token"

    @property
    def engine_key(self) -> str:
        """The key that the engine asks of the gateway, mode 0600."""
        return f"{self.run_dir}/engine-key"

    @property
    def standby(self) -> str:
        """What a second gateway's program is told, mode 0600."""
        return f"{self.run_dir}/standby.json"

    @property
    def standby_config(self) -> str:
        """The second gateway's file, on its node."""
        return f"{self.run_dir}/standby.toml"

    @property
    def standby_ledger(self) -> str:
        """Its ledger, which ends with the deployment."""
        return f"{self.run_dir}/standby.sqlite3"

    @property
    def vllm_config(self) -> str:
        """The directory with ray_non_carry_over_env_vars.json."""
        return f"{self.run_dir}/vllm"

    def ray_dir(self, node: str) -> str:
        """Ray's temporary directory of one node. Short whatever the node is called: Ray puts sockets there, whose paths have
        107 bytes at most, 64 of which it needs itself."""
        return f"{self.run_dir}/ray/{hashlib.sha256(node.encode()).hexdigest()[:6]}"


class Ports(NamedTuple):
    """Free ports of one node, all different: a rendezvous on Ray's own port ends the engine (EADDRINUSE)."""

    ray: int
    engine: int
    ray_client: int
    ray_agent: int
    rendezvous: int
