"""Two replicas of the demo model behind one gateway, under the load of the real OpenAI client: one breaks, one leaves, nobody is lost."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from engine.running import Longspan, is_running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]
PORT = 18437
ASKED = (
    "--replicas", "2", "--pp", "1", "--listen", f"127.0.0.1:{PORT}", "--standby-gateway", f"node-2=127.0.0.1:{PORT + 1}",
)  # fmt: skip


@pytest.fixture(scope="module")
def served(fresh: Longspan) -> Longspan:
    """Two replicas of one rank each, on a node of its own each."""
    done = fresh.up(*ASKED)
    assert done.returncode == 0, done.stderr + done.stdout
    return fresh


@dataclass
class Load:
    """A stream a second; what became of each. Two cores load the next engine meanwhile."""

    client: openai.OpenAI
    model: str
    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def one(self, number: int) -> None:
        """A stream of a few tokens to its end."""
        tokens, reason = 0, None
        try:
            for chunk in self.client.completions.create(
                model=self.model, prompt=f"{number} Once upon a time", max_tokens=8, stream=True
            ):
                tokens += bool(chunk.choices)
                reason = next((choice.finish_reason for choice in chunk.choices), None) or reason
        except openai.OpenAIError as error:
            self.wrong.append(f"{number}: {type(error).__name__} after {tokens} tokens: {error}")
            return
        if reason:
            self.answered += 1
        else:
            self.wrong.append(f"{number}: ended without a reason after {tokens} tokens")

    def run(self) -> None:
        """Until it is told to stop."""
        number = 0
        while not self.stop.wait(1.0):
            thread = threading.Thread(target=self.one, args=(number,))
            thread.start()
            self.threads.append(thread)
            number += 1


@pytest.fixture
def load(served: Longspan) -> Iterator[Load]:
    """Runs beside the test."""
    status = served.status()
    key = Path(status["api_key_file"]).read_text().strip()
    client = openai.OpenAI(base_url=status["endpoint"], api_key=key, timeout=120, max_retries=0)
    made = Load(client, status["served_name"])
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        yield made
    finally:
        made.stop.set()
        runner.join()
        for thread in made.threads:
            thread.join()


def test_both_are_proved_and_have_places_of_their_own(served: Longspan) -> None:
    """Each on its node, each with its own proof; the reference was made once."""
    replicas = served.status()["replicas"]
    assert [(one["name"], one["phase"], one["nodes"]) for one in replicas] == [
        ("r0", "serving", ["node-1"]), ("r1", "serving", ["node-2"]),
    ]  # fmt: skip
    assert all("4 of 4 layers passed" in one["proof"] for one in replicas)
    pids = {row["pid"] for one in replicas for row in one["ranks"]}
    assert len(pids) == 2


def test_a_second_gateway_serves_the_same(served: Longspan) -> None:
    """The client's key is good at either address; what is asked of the second one is answered by the replicas, too."""
    status = served.status()
    second = status["standby"]
    assert (second["node"], second["endpoint"]) == ("node-2", f"http://127.0.0.1:{PORT + 1}/v1")
    key = Path(status["api_key_file"]).read_text().strip()
    for base_url in (status["endpoint"], second["endpoint"]):
        with openai.OpenAI(base_url=base_url, api_key=key, timeout=120, max_retries=0) as client:
            answer = client.completions.create(
                model=status["served_name"], prompt="The capital of France is", max_tokens=2, temperature=0
            )
            assert answer.choices[0].text.strip().startswith("Paris")


def test_one_that_dies_costs_no_request_that_had_no_content(served: Longspan, load: Load) -> None:
    """Ray's process on r1's node is killed under load, and its rank with it: r0 takes all, what r1 had not begun is tried again there,
    Ray is started there again, and r1 comes back with a proof."""
    before = served.status()["replicas"]
    time.sleep(3)
    done = served.run(
        "drill", "kill-raylet", "--replica", "r1", "--rate", "0.5", "--yes", "--json", timeout_seconds=900
    )
    assert done.returncode == 0, done.stderr
    drilled = json.loads(done.stdout)
    assert drilled["restarts"] == 1
    assert drilled["requests"]["refused"] == drilled["requests"]["hung"] == 0
    assert drilled["detect_seconds"] < 10
    # A stream that had content ends with an error that says so; it is never begun again.
    assert [text for text in load.wrong if "after 0 tokens" in text] == []
    assert load.answered > 10
    after = served.status()["replicas"]
    assert [one["phase"] for one in after] == ["serving", "serving"]
    assert after[0]["ranks"] == before[0]["ranks"]
    assert after[1]["ranks"] != before[1]["ranks"]
    assert "4 of 4 layers passed" in after[1]["proof"]


def test_other_arguments_one_replica_at_a_time(served: Longspan, load: Load) -> None:
    """`up --rolling` under load: a new engine with a proof for each, the canary first, no request lost, and `up` again knows it."""
    before = served.status()["replicas"]
    done = served.run(
        "up", *ASKED, "--rolling", "--watch", "5", "--json", "--", "--max-num-seqs", "8", timeout_seconds=900
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["change"]
    assert (found["stage"], found["canary"], found["what"]) == (
        "changed",
        "r1",
        ["arguments: none -> --max-num-seqs 8"],
    )
    after = served.status()["replicas"]
    assert all(
        old["ranks"][0]["pid"] != new["ranks"][0]["pid"] for old, new in zip(before, after, strict=True)
    )
    assert all("4 of 4 layers passed" in one["proof"] for one in after)
    assert served.up(*ASKED, "--", "--max-num-seqs", "8").returncode == 0
    load.stop.set()
    for thread in load.threads:
        thread.join()
    assert load.wrong == []
    assert load.answered > 10


def test_one_that_leaves_loses_nothing(served: Longspan, load: Load) -> None:
    """`scale 1` under load: the last replica finishes what it has, ends, and its processes are gone."""
    pid = served.status()["replicas"][1]["ranks"][0]["pid"]
    time.sleep(3)
    done = served.run("scale", "1", timeout_seconds=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1 replica: r0."
    assert "r1: gone, its GPUs are free" in done.stderr
    assert not is_running(pid)
    time.sleep(3)
    load.stop.set()
    for thread in load.threads:
        thread.join()
    assert load.wrong == []
    assert load.answered > 5
    refused = served.run("scale", "3")
    assert "nodes were taken and checked for 2" in refused.stderr
