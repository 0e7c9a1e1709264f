"""Where one text has several causes, a small function reads the surroundings and chooses. One explicit table."""

from collections.abc import Callable

from longspan.doctor.deciders import memory, network, ray
from longspan.doctor.deciders.plain import default
from longspan.doctor.rules.rule import Rule
from longspan.doctor.scene import Guess, Scene
from longspan.doctor.timeline import Event

Decider = Callable[[Event, Rule, Scene], Guess]

DECIDERS: dict[str, Decider] = {
    "": default,
    "nccl_connect": network.nccl_connect,
    "missing_nic": network.missing_nic,
    "store_address": network.store_address,
    "watchdog": network.watchdog,
    "nccl_generic": network.nccl_generic,
    "ib_completion": network.ib_completion,
    "ib_modify_qp": network.ib_modify_qp,
    "cannot_assign": network.cannot_assign,
    "hang_phase": network.hang_phase,
    "frontend_silent": network.frontend_silent,
    "gcs_lost": ray.gcs_lost,
    "raylet_ended": ray.raylet_ended,
    "node_lost": ray.node_lost,
    "module_missing": ray.module_missing,
    "model_path": ray.model_path,
    "on_one_node": ray.on_one_node,
    "node_no_gpu": ray.node_no_gpu,
    "placement": ray.placement,
    "worker_exit": memory.worker_exit,
    "ended_from_outside": memory.ended_from_outside,
    "host_alloc": memory.host_alloc,
    "oom_victim": memory.oom_victim,
    "no_space": memory.no_space,
    "cuda_oom": memory.cuda_oom,
}
