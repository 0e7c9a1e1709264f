"""Every error that a user can meet: what was seen and why it matters, what to do, and an exit code.

All classes live in this one file so that the exit codes stay unique (`tests/test_errors.py` checks it) and
`docs/exit-codes.md` can be generated from it. 0 is success, 1 an error of ours, 2 a wrong command line, 130 Ctrl-C.
"""

from typing import ClassVar


class LongspanError(Exception):
    """An expected error: shown to the user as one paragraph, never as a traceback.

    Args:
        what: what was seen and why it matters, one or two sentences.
        remedy: what to do now, as an instruction.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}".strip()


class InputError(LongspanError):
    """A value on the command line or in a file of the user's is wrong."""

    exit_code = 10


class ModelError(LongspanError):
    """The model cannot be read: no config.json, a missing or contradictory field."""

    exit_code = 11


class LayoutError(LongspanError):
    """The layout asked for is illegal for this model, in the words vLLM would use."""

    exit_code = 12


class CapacityError(LongspanError):
    """More GPUs, memory or disk than there is."""

    exit_code = 13


class PortError(LongspanError):
    """A port that must be ours is taken."""

    exit_code = 14


class EngineMissingError(LongspanError):
    """vLLM or Ray is not installed, or is too old."""

    exit_code = 15


class RayError(LongspanError):
    """Ray did not start, is of another version, or could not be joined."""

    exit_code = 16


class HostError(LongspanError):
    """A host cannot be reached, or a command on it failed."""

    exit_code = 17


class LaunchError(LongspanError):
    """A phase of the launch failed or took too long."""

    exit_code = 18


class ProofError(LongspanError):
    """The deployment answers, but its answers are not those of the checkpoint."""

    exit_code = 19


class DeploymentExistsError(LongspanError):
    """Another deployment runs under this name."""

    exit_code = 20


class NoDeploymentError(LongspanError):
    """Nothing runs under this name."""

    exit_code = 21


class ControlPlaneError(LongspanError):
    """The controller or an agent does not answer."""

    exit_code = 22


class StateError(LongspanError):
    """Longspan's own files (state, key, cache) cannot be written or read: a full disk, a read-only home."""

    exit_code = 25


class GatewayConfigError(LongspanError):
    """The gateway's configuration file is unreadable, is not TOML, or contradicts itself."""

    exit_code = 50


class GatewayError(LongspanError):
    """The gateway could not start or does not answer."""

    exit_code = 51


class ModelFetchError(ModelError):
    """The model is neither a directory here nor in the built-in list, and Hugging Face did not give it."""

    exit_code = 30


class CalibrationError(LongspanError):
    """A calibration file cannot be read, or holds nothing that could correct an estimate."""

    exit_code = 31


class PlanFileError(LongspanError):
    """A saved plan cannot be read."""

    exit_code = 40


class NoPlanError(LongspanError):
    """No layout of the model works on the cluster."""

    exit_code = 41


class ProbeError(LongspanError):
    """What a node printed about its GPUs or network cannot be read."""

    exit_code = 42


class SlurmError(LongspanError):
    """Slurm does not answer, or the allocation cannot be used."""

    exit_code = 80


class NoTokenError(LongspanError):
    """A token was asked for and none came, nor does the gateway see any move."""

    exit_code = 81


class StageError(LongspanError):
    """What a node should hold could not be brought there, or is not the same there."""

    exit_code = 82


class AuditError(LongspanError):
    """A rule of the audit found something that must not stay."""

    exit_code = 83


class LogUnreadableError(LongspanError):
    """A log that the doctor should read does not exist or may not be read."""

    exit_code = 60


class BundleError(LongspanError):
    """The doctor's archive cannot be written."""

    exit_code = 61


class CheckError(LongspanError):
    """The pre-flight found an error on a node or between nodes, so a launch would fail or be wrong."""

    exit_code = 70


class BenchError(LongspanError):
    """The load test could not be made: the endpoint is away, refuses the key or does not know the model."""

    exit_code = 90


class ResultError(LongspanError):
    """A result of a load test cannot be read or written."""

    exit_code = 91


class UnsoundRunError(LongspanError):
    """The load test ran, but its figures are not to be believed: the client was the limit, counts differ, nothing succeeded."""

    exit_code = 92


class WorseError(LongspanError):
    """`longspan bench compare`: B is worse than A."""

    exit_code = 93


class UndecidedError(LongspanError):
    """`longspan bench compare`: it cannot be told which of the two is better, and the answer says how much longer to run."""

    exit_code = 94


class ConditionsError(LongspanError):
    """Two measurements were made under conditions that differ, so a comparison would mean nothing."""

    exit_code = 95


class MonitorConfigError(LongspanError):
    """The file of objectives and alarm levels (`alarms.toml`), or that of the webhook's address, cannot be used."""

    exit_code = 100


class LogsError(LongspanError):
    """There is no such node, replica or rank, or it has no log."""

    exit_code = 101


class DashboardKeyError(LongspanError):
    """The file with the dashboard's key cannot be read, or holds none."""

    exit_code = 102


class DrillError(LongspanError):
    """After a fault that a drill made, the deployment was not back in time."""

    exit_code = 112


class RehearsalModelError(ModelError):
    """No shrunken model of this architecture can be made for a rehearsal."""

    exit_code = 110


class RehearsalError(LongspanError):
    """The rehearsal came to its end, but something that it should prove was not: it says what."""

    exit_code = 111
