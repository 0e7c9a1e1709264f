"""What is asked of a head before anything is passed on."""

import re

import pytest

from gateway.helpers import config
from longspan.errors import GatewayConfigError
from longspan.gateway import front
from longspan.gateway.dialect import CHAT
from longspan.gateway.heads import Head
from longspan.gateway.wire import Header


def study(target: bytes, method: bytes = b"POST", headers: list[Header] | None = None) -> front.Meaning:
    """A head judged where no key is asked for."""
    settings = config(more='[[models]]\nname = "org/big"\n')
    return front.study(settings, {}, Head(method, target, headers or [], "1.1", True))


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/load_lora_adapter", b"/v1/load%5Flora_adapter", b"/v1/%6coad_lora_adapter", b"/v1/load_lora_adapter#x",
        b"/v1/load_lora_adapter%23", b"/v1/unload%5flora_adapter", b"/v1/load_lora_adapter?x=1",
    ],
)  # fmt: skip
def test_no_spelling_of_a_forbidden_path_is_passed_on(target: bytes) -> None:
    """Engines decode percent signs and drop fragments, so the path is judged as they will read it."""
    answer = study(target).answer
    assert answer is not None
    assert answer.status in (400, 403)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("[overflow]\nthreshold_seconds = nan\n", "overflow.threshold_seconds is nan"),
        ("[queue]\nmax_waiting = -1\n", "queue.max_waiting is -1"),
        ("[timeouts]\nidle_seconds = inf\n", "timeouts.idle_seconds is inf"),
        ('[[models]]\nname = "demo"\n', "Two names of models are called 'demo'"),
        ('[[models]]\nname = "a\\r\\nx: y"\n', "is no name"),
        ('[admin]\nlisten = "127.0.0.1:0"\nsha256 = "abc"\n', "admin.sha256"),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{"a" * 64}"\n[[keys]]\nname = "a"\nsha256 = "{"b" * 64}"\n',
            "Two keys are called 'a'",
        ),
        (
            '[[providers]]\nname = "p"\nurl = "http://a"\nmodels = { m = "x" }\nprompt_usd_per_million_tokens = -1\n',
            "prompt_usd_per_million_tokens is -1",
        ),
        (
            '[[replicas]]\nname = "x"\nurl = "http://a"\nmodel = "m"\nweight = -0.5\n',
            "weight is -0.5",
        ),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(more: str, why: str) -> None:
    """NaN never overflows, a negative price refunds, a line break in a name splits headers, two keys of one name
    share limits; the mistake is named."""
    with pytest.raises(GatewayConfigError, match=re.escape(why)):
        config(more=more)


def test_a_session_header_may_be_written_in_any_case() -> None:
    """Header names have none; the file's did."""
    settings = config(more='[routing]\nsession_headers = ["X-Chat"]\n')
    head = Head(b"POST", b"/v1/x", [(b"x-chat", b"7")], "1.1", True)
    assert front.study(settings, {}, head).session == b"7"


def test_an_encoded_letter_does_not_hide_what_an_api_is() -> None:
    """Else its streams would be relayed without end marker and accounting."""
    assert study(b"/v1/ch%61t/completions").dialect is CHAT


def test_a_model_name_with_an_encoded_slash_is_found() -> None:
    """The JavaScript client encodes it."""
    answer = study(b"/v1/models/org%2Fbig", b"GET").answer
    assert answer is not None
    assert answer.status == 200
    assert study(b"/v1/files/a%2Fb", b"GET").answer is not None


@pytest.mark.parametrize("values", [(b"1", b"0"), (b"0", b"1"), (b"false", b"true")])
def test_local_only_said_twice_holds_if_it_was_said_once(values: tuple[bytes, bytes]) -> None:
    """It is absolute: a second header cannot take it back."""
    assert study(b"/v1/x", headers=[(b"x-longspan-local-only", value) for value in values]).local_only
    assert not study(b"/v1/x", headers=[(b"x-longspan-local-only", b"0")] * 2).local_only
