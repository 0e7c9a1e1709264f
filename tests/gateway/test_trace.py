"""W3C trace context: read strictly, continued, decided by the caller."""

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import GatewayConfigError
from longspan.gateway.config import Tracing
from longspan.gateway.trace import begin, format_trace, header, parse, read
from longspan.gateway.tracing import Tracer

CALLER = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "bad",
    [b"", b"00", CALLER.upper(), CALLER[:-1], CALLER + b"-x", CALLER.replace(b"-", b"_"), b"ff" + CALLER[2:],
     b"00-" + b"0" * 32 + CALLER[35:], CALLER[:36] + b"0" * 16 + b"-01", CALLER.replace(b"4bf", b"zzz")],
)  # fmt: skip
def test_what_is_malformed_is_no_context(bad: bytes) -> None:
    """The recommendation says to restart the trace then."""
    assert read(bad) is None
    begun = begin(bad, 1.0, random.getrandbits)
    assert begun is not None
    assert not begun.parent


def test_a_later_version_with_more_fields_is_read() -> None:
    """Versions to come may append fields."""
    assert read(b"01" + CALLER[2:] + b"-more") is not None


@given(st.binary(max_size=80))
def test_reading_never_fails(value: bytes) -> None:
    """Any bytes give a context or none."""
    read(value)


@given(st.randoms(use_true_random=False), st.booleans())
def test_a_trace_survives_header_and_ledger(rnd: random.Random, from_caller: bool) -> None:
    """What we send is a valid context of the same trace, and the ledger's text gives it back."""
    begun = begin(CALLER if from_caller else None, 1.0, rnd.getrandbits)
    assert begun is not None
    assert parse(format_trace(begun)) == begun
    assert read(header(begun)) == (begun.trace, begun.span, True)
    assert (begun.trace == CALLER[3:35].decode()) == from_caller


def test_the_caller_decides_and_else_the_share() -> None:
    """Not sampled there, not recorded here; share 0 records only what the caller records."""
    assert begin(CALLER[:-1] + b"0", 1.0, random.getrandbits) is None
    assert begin(None, 0.0, random.getrandbits) is None
    assert begin(CALLER, 0.0, random.getrandbits) is not None


def test_without_the_extra_the_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(GatewayConfigError, match=r"longspan\[otel\]"):
        Tracer(Tracing("http://127.0.0.1:1/v1/traces"))
