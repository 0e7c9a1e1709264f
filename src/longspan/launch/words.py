"""The few words that our own processes and the code that starts and reads them must agree on."""

# Lines of the launcher's standard output that start with this are events for the controller, as JSON.
EVENT_MARK = "longspan-event "
# Names the file with the engine's key; the key itself must not stand in an environment that vLLM hands on.
KEY_FILE_VARIABLE = "LONGSPAN_ENGINE_KEY_FILE"
# Per-node values by node address, as JSON; read by launch/worker_hook.py in every worker of our job.
NODE_ENV_VARIABLE = "LONGSPAN_NODE_ENV"
# Stands in the environment of every process of one start of a deployment; agents know their own by it.
MARK_VARIABLE = "LONGSPAN_MARK"
# Of one group of that start: a rank that is ended and started again has another.
GROUP_VARIABLE = "LONGSPAN_GROUP"
# The same for the start's agents, which are not among the processes that they end.
AGENT_VARIABLE = "LONGSPAN_AGENT_OF"
# How the names of our placement groups begin; the deployment's name, the replica's and the number of its start follow.
GROUP_PREFIX = "longspan-"
