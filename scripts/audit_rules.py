#!/usr/bin/env python3
"""Writes docs/audit.md from the rules: `python scripts/audit_rules.py`. tests/test_docs.py checks that it is current."""

from pathlib import Path

from longspan.audit.rules import RULES

HEAD = """# The audit

`longspan audit` runs the production checklist over a deployment that serves. Each finding has its evidence and its remedy; a
rule that could not be looked at says why. The exit code is 0 where no rule of severity `error` found anything (with
`--strict`, no `warning` either), else 83.

```console
$ longspan audit --cluster hosts.toml          # the cluster file knows the networks
$ longspan audit --strict --json               # for CI
```

What is looked at: the controller's status, the gateway's file, a request without a key to the gateway and to every port
that the deployment's processes have open beyond loopback (from where the audit runs), the engine's counters, what Prometheus would collect, and on every node
the open ports, command lines and environments of the deployment's processes. A secret's value never leaves its node.

| rule | passes when | severity | why |
| --- | --- | --- | --- |
"""


def render() -> str:
    """The page."""
    rows = [f"| `{rule.name}` | {rule.passes} | {rule.severity} | {rule.why} |" for rule in RULES]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "audit.md").write_text(render())
