"""Every rule and every mark in one explicit table."""

from longspan.doctor.rules import gpu, host, marks, model, nccl, ray, rdma, wrappers
from longspan.doctor.rules.rule import Mark, Rule

RULES: tuple[Rule, ...] = (
    *nccl.RULES, *rdma.RULES, *ray.RULES, *host.RULES, *gpu.RULES, *model.RULES, *wrappers.RULES,
)  # fmt: skip
MARKS: tuple[Mark, ...] = marks.MARKS

__all__ = ["MARKS", "RULES", "Mark", "Rule"]
