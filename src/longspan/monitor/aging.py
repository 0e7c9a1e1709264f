"""A picture that is some seconds old, as it must be read now. Pure."""

from dataclasses import replace

from longspan.monitor.view import ClusterView, node_state

TELLING_SECONDS = 3.0


def aged(view: ClusterView, seconds: float) -> ClusterView:
    """The same picture with everything older by so much: for a reader that has lost the controller, or polls it slowly."""

    def older(age: float | None) -> float | None:
        return None if age is None else age + seconds

    nodes = tuple(
        replace(node, age_seconds=older(node.age_seconds), state=node_state(older(node.age_seconds)))
        for node in view.nodes
    )
    replicas = tuple(replace(one, age_seconds=older(one.age_seconds)) for one in view.replicas)
    gateway = replace(view.gateway, age_seconds=older(view.gateway.age_seconds))
    lost = (f"The controller was last heard of {seconds:.0f} s ago: all of this is from then.",)
    unknown = (*lost, *view.unknown) if seconds > TELLING_SECONDS else view.unknown
    return replace(view, nodes=nodes, replicas=replicas, gateway=gateway, unknown=unknown)
