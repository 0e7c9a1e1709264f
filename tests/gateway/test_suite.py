"""The fault suite, where its files are there: the quick cases always, all of them with LONGSPAN_GATEWAY_SUITE=all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ROOT.parent / "shared" / "gateway"
OURS = ROOT / "tests" / "gateway_suite"
# Cases that end within a few seconds on two cores.
QUICK = (
    "stream-cut-rst,stream-eof-no-done,stream-malformed-passes,stream-early-eof,error-before-content,"
    "json-400-content-type,utf8-bytes,plain-endpoints,large-body,replica-killed,client-400-breaker,models-one-down,"
    "retry-same-replica,cap-race,burst-balance,session-sticky,disconnect-unary,disconnect-stream,usage-stream,gzip-local,"
    "client-key-external,vllm-fields,overflow-idle-none,overflow-dead-pool,local-only"
)
QUICK_OURS = (
    "more-fin-all-apis,more-errevent-all-apis,more-ok-all-apis,more-empty,more-rpm,more-key-parallel-race,more-wrong-key,"
    "more-queue,more-retry-after,more-headers,more-usage-kept,more-provider-fails,more-provider-fields,more-worker-dies,"
    "more-leave-storm,more-local-only-dead"
)


@pytest.mark.skipif(not SUITE.exists(), reason="the suite's files (../shared/gateway) are not there")
@pytest.mark.parametrize(
    ("cases", "quick"),
    [(SUITE / "cases_dev.py", QUICK), (OURS / "cases_more.py", QUICK_OURS)],
    ids=["dev", "ours"],
)
def test_every_case_passes(tmp_path: Path, cases: Path, quick: str) -> None:
    """A case asserts what a user wants; all of them can be met together."""
    command = [
        sys.executable,
        str(SUITE / "run_suite.py"),
        "--adapter",
        str(OURS / "adapter.py"),
        "--cases",
        str(cases),
    ]
    command += ["--json", str(tmp_path / "out.json"), "--keep", str(tmp_path / "work")]
    if os.environ.get("LONGSPAN_GATEWAY_SUITE") != "all":
        command += ["--only", quick]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert results
    bad = [f"{r['id']}: {r['verdict']} {r['reason']}" for r in results if r["verdict"] != "pass"]
    assert not bad, "\n".join(bad)
