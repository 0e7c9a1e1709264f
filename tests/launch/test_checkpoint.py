"""Which blocks are digested, and what several nodes' digests say about their copies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.launch.checkpoint import (
    LEAF_BYTES,
    SAMPLE_BLOCK_BYTES,
    CheckpointDigest,
    FileDigest,
    compare_copies,
    sample_count,
    sampled_blocks,
    whole_blocks,
)
from longspan.launch.judge import digest_layer

MIB = 1 << 20
sizes = st.integers(0, 3000 * MIB)


def copy(nonce: str = "n", **digests: str) -> CheckpointDigest:
    """A copy of small files read whole, `model_safetensors="a"` standing for model.safetensors with digest a."""
    files = [
        FileDigest(name.replace("_", "."), 100, digest, "whole", 100) for name, digest in digests.items()
    ]
    return CheckpointDigest("/models/m", nonce, tuple(files))


GOOD = copy(config_json="c", model_safetensors="a", tokenizer_json="t")


@given(sizes)
def test_whole_blocks_cover_every_byte_once(size: int) -> None:
    """The leaves of a file read whole join to the file, without gap or overlap."""
    position = 0
    for offset, length in whole_blocks(size):
        assert offset == position
        assert 0 < length <= LEAF_BYTES
        position += length
    assert position == size


@given(sizes, st.integers(0, 500), st.integers(0, 20 * MIB), st.text(max_size=8))
def test_sampled_blocks_do_not_overlap(size: int, count: int, header: int, nonce: str) -> None:
    """Sampled blocks ascend without overlap inside the file, and hold the whole header and the last byte."""
    blocks = list(sampled_blocks("w", size, nonce=nonce, count=count, header_bytes=header))
    end = 0
    for offset, length in blocks:
        assert offset >= end
        end = offset + length
    assert end == size
    assert blocks[0][0] == 0
    assert blocks[0][1] >= min(header, size)
    assert len(blocks) <= count + 2


@given(st.integers(200 * MIB, 3000 * MIB), st.text(max_size=8), st.text(max_size=8))
def test_the_nonce_decides_the_blocks(size: int, one: str, other: str) -> None:
    """Equal nonces give equal places on every node; the number of bytes read does not depend on the nonce."""
    blocks = {
        nonce: list(sampled_blocks("w", size, nonce=nonce, count=40, header_bytes=0))
        for nonce in (one, other)
    }
    assert blocks[one] == list(sampled_blocks("w", size, nonce=one, count=40, header_bytes=0))
    assert sum(n for _, n in blocks[one]) == sum(n for _, n in blocks[other])


def test_another_nonce_reads_other_bytes() -> None:
    """Repeated starts see ever more of a file: after 40 of them most of it, though each reads a tenth."""
    size, seen = 200 * MIB, set()
    for nonce in range(40):
        for offset, _ in sampled_blocks("w", size, nonce=str(nonce), count=20, header_bytes=0):
            seen.add(offset // SAMPLE_BLOCK_BYTES)
    assert len(seen) > 190


@given(st.integers(0, 5 * MIB), st.integers(1, 4))
def test_no_byte_is_out_of_reach(extra: int, count: int) -> None:
    """Over many starts every byte of a file is read at some time, whatever its size."""
    size = 4 * MIB + extra
    blocks = {
        block
        for nonce in range(200)
        for block in sampled_blocks("w", size, nonce=str(nonce), count=count, header_bytes=0)
    }
    end = 0
    for offset, length in sorted(blocks):
        assert offset <= end
        end = max(end, offset + length)
    assert end == size


def test_samples_follow_the_size_of_a_file() -> None:
    """A larger file gets more blocks, a small one at least eight, so that no file escapes."""
    assert sample_count(5 * 10**9, 10**12) < sample_count(50 * 10**9, 10**12)
    assert sample_count(1, 10**12) == 8


def test_equal_copies_leave_no_finding() -> None:
    """Copies that agree are not complained about, however many there are."""
    assert compare_copies({"a": GOOD, "b": GOOD, "c": GOOD}, "a") == ()
    assert compare_copies({"a": GOOD}, "a") == ()


@given(st.integers(3, 9), st.data())
def test_the_odd_one_of_many_is_named(nodes: int, data: st.DataObject) -> None:
    """Of three and more nodes, the one whose file differs is named with the file, even if it is the head."""
    names = [f"n{i}" for i in range(nodes)]
    odd = data.draw(st.sampled_from(names))
    file = data.draw(st.sampled_from(["config_json", "model_safetensors", "tokenizer_json"]))
    values = {"config_json": "c", "model_safetensors": "a", "tokenizer_json": "t"}
    copies = {name: copy(**{**values, file: "x"} if name == odd else values) for name in names}
    (finding,) = compare_copies(copies, "n0")
    assert finding.subject == odd
    assert file.replace("_", ".") in finding.summary
    assert finding.cause == "checkpoint-file-differs"
    assert "majority" not in finding.summary


def test_of_two_the_head_counts_and_the_finding_says_so() -> None:
    """Two copies cannot outvote each other: the other node is named, and the reader learns on what grounds."""
    bad = copy(config_json="c", model_safetensors="x", tokenizer_json="t")
    (finding,) = compare_copies({"head": GOOD, "far": bad}, "head")
    assert finding.subject == "far"
    assert "no majority" in finding.summary


def test_another_revision_is_one_finding() -> None:
    """Weights and config that differ together are another revision, told once and not file by file."""
    other = copy(config_json="C", model_safetensors="A", tokenizer_json="t")
    (finding,) = compare_copies({"a": GOOD, "b": GOOD, "c": other}, "a")
    assert finding.cause == "checkpoint-revision-differs"
    assert finding.subject == "c"
    assert {e.file for e in finding.evidence} == {"/models/m/config.json", "/models/m/model.safetensors"}


def test_two_damaged_weight_files_are_two_findings() -> None:
    """Weights that differ under one config are damage, told file by file."""
    values = {"config_json": "c", "m1_safetensors": "a", "m2_safetensors": "b"}
    bad = copy(**{**values, "m1_safetensors": "x", "m2_safetensors": "y"})
    findings = compare_copies({"a": copy(**values), "b": copy(**values), "c": bad}, "a")
    assert [f.cause for f in findings] == ["checkpoint-file-differs"] * 2


def test_missing_and_extra_files() -> None:
    """A file that one node lacks is an error there; one that only it has is an error only if it holds weights."""
    less = copy(config_json="c", tokenizer_json="t")
    (missing,) = compare_copies({"a": GOOD, "b": GOOD, "c": less}, "a")
    assert (missing.subject, missing.cause, missing.severity) == ("c", "checkpoint-file-missing", "error")
    for name, severity in (("vocab_json", "warning"), ("more_safetensors", "error")):
        more = CheckpointDigest("/models/m", "n", (*GOOD.files, *copy(**{name: "v"}).files))
        (extra,) = compare_copies({"a": GOOD, "b": GOOD, "c": more}, "a")
        assert (extra.subject, extra.cause, extra.severity) == ("c", "checkpoint-file-extra", severity)


def test_a_node_without_a_copy_is_named() -> None:
    """A node that has no such directory is an error, also where it is the head."""
    for missing in ("a", "b"):
        copies = {name: None if name == missing else GOOD for name in ("a", "b", "c")}
        (finding,) = compare_copies(copies, "a")
        assert (finding.subject, finding.cause) == (missing, "checkpoint-missing")


def test_a_sampled_file_is_compared_with_a_whole_one_by_size_only() -> None:
    """Digests made in different ways prove nothing against each other; a size that differs still does."""
    whole = FileDigest("w.safetensors", 100, "whole", "whole", 100)
    sampled = FileDigest("w.safetensors", 100, "sampled", "sampled", 10)
    short = FileDigest("w.safetensors", 99, "sampled", "sampled", 10)

    def at(file: FileDigest) -> CheckpointDigest:
        return CheckpointDigest("/models/m", "n", (file,))

    assert compare_copies({"a": at(whole), "b": at(sampled)}, "a") == ()
    (finding,) = compare_copies({"a": at(whole), "b": at(short)}, "a")
    assert finding.subject == "b"


def test_other_nonces_are_not_compared() -> None:
    """Digests of different places, or without the head's, are a mistake of the caller's."""
    with pytest.raises(ValueError, match="nonces"):
        compare_copies({"a": GOOD, "b": copy(nonce="other", config_json="c")}, "a")
    with pytest.raises(ValueError, match="head"):
        compare_copies({"a": GOOD}, "z")


def test_digests_survive_the_wire() -> None:
    """JSON there and back changes nothing, and the identity follows the files, not their order."""
    assert CheckpointDigest.from_json(json.loads(json.dumps(GOOD.to_json()))) == GOOD
    turned = CheckpointDigest(GOOD.path, GOOD.nonce, GOOD.files[::-1])
    assert turned.identity == GOOD.identity
    assert copy(config_json="c").identity != copy(config_json="d").identity


def test_a_fingerprint_can_be_compared_between_starts() -> None:
    """Other bytes of a file that was read whole, or another size, change it; the nonce's choice of sampled bytes does not."""

    def copy(nonce: str, *files: FileDigest) -> str:
        return CheckpointDigest("/m", nonce, files).fingerprint

    whole, sampled = FileDigest("a", 10, "d1", "whole", 10), FileDigest("b", 99, "d2", "sampled", 9)
    other_places = FileDigest("b", 99, "d3", "sampled", 9)
    assert copy("n1", whole, sampled) == copy("n2", other_places, whole)
    assert copy("n1", whole) != copy("n1", FileDigest("a", 10, "d9", "whole", 10))
    assert copy("n1", sampled) != copy("n1", FileDigest("b", 98, "d2", "sampled", 9))


def test_a_node_that_fetches_later_is_compared_with_nothing() -> None:
    """A node whose hub cache is empty is neither missing a copy nor holding another one; the layer names it."""
    files = (FileDigest("model.safetensors", 1, "aa", "whole", 1),)
    copy = CheckpointDigest("/m", "n", files)
    digests = {"a": copy, "b": CheckpointDigest("org/m", "n", ()), "c": copy}
    assert compare_copies(digests, "a") == ()
    layer = digest_layer(digests, "a")
    assert layer.state == "passed"
    assert "2 nodes hold the same copy" in layer.seen
    assert "not compared: b" in layer.seen
    assert digest_layer({"a": copy, "b": digests["b"]}, "a").state == "skipped"
