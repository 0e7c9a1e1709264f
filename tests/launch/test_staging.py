"""What a node still lacks, from what it lists."""

import contextlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import CapacityError, StageError
from longspan.launch.staging import PART, Listing, SourceFile, parse_listing, plan_node

FILES = (SourceFile("config.json", 10), SourceFile("sub/model.safetensors", 1000))
HERE = Listing("/m", 1 << 40, "f0", True, {file.path: (file.size_bytes, 7) for file in FILES})


def there(sizes: Mapping[str, int], **changes: object) -> Listing:
    """A node's listing with these sizes."""
    found = {path: (size, 9) for path, size in sizes.items()}
    return Listing(
        **{
            "directory": "/m",
            "free_bytes": 1 << 40,
            "filesystem": "f1",
            "writable": True,
            "files": found,
            **changes,
        }
    )  # type: ignore[arg-type]


def test_what_it_prints_is_read() -> None:
    """Sizes, inodes and names with blanks; a directory that is not there yet has no files."""
    text = "dir /a b\nfree 500\nfs 1a\nwritable yes\nfiles\n5 77 x y\x0010 78 sub/z\x00"
    assert parse_listing(text, "n") == Listing("/a b", 500, "1a", True, {"x y": (5, 77), "sub/z": (10, 78)})
    assert parse_listing("dir /a\nfree 5\nfs 1\nwritable \nfiles\n", "n") == Listing("/a", 5, "1", False, {})


@given(st.text(max_size=100))
def test_any_text_is_a_listing_or_an_error(text: str) -> None:
    """A login shell's greeting or half an answer is the one error, naming the node."""
    with contextlib.suppress(StageError):
        parse_listing(text, "n")
    with pytest.raises(StageError, match="n cannot list"):
        parse_listing(f"Welcome!\n{text}", "n")


def test_only_what_is_missing() -> None:
    """Whole files stay, parts are gone on from where they end, the rest comes from its first byte."""
    plan = plan_node("n", there({"config.json": 10, f"sub/model.safetensors{PART}": 400}), FILES, HERE)
    assert [(piece.path, piece.offset) for piece in plan.pieces] == [("sub/model.safetensors", 400)]
    assert (plan.left_bytes, plan.present_bytes, plan.shared) == (600, 410, False)
    assert plan_node("n", there({}), FILES, HERE).left_bytes == 1010
    assert plan_node("n", there({file.path: file.size_bytes for file in FILES}), FILES, HERE).pieces == ()


def test_a_whole_part_is_only_named() -> None:
    """A part that has all bytes (the connection broke before it got its name) is sent nothing more."""
    plan = plan_node("n", there({"config.json": 10, f"sub/model.safetensors{PART}": 1000}), FILES, HERE)
    assert [(piece.path, piece.left_bytes) for piece in plan.pieces] == [("sub/model.safetensors", 0)]
    with pytest.raises(StageError, match="part of another"):
        plan_node("n", there({f"sub/model.safetensors{PART}": 1001}), FILES, HERE)


def test_the_same_files_are_not_sent() -> None:
    """Same place, file system and inodes: mounted there. Another inode: a copy of its own."""
    assert plan_node("n", HERE, FILES, HERE).shared
    for other in (
        there({file.path: file.size_bytes for file in FILES}, filesystem="f0"),
        there({}, files=HERE.files),
        there({}, filesystem="f0", files=HERE.files, directory="/other"),
    ):
        assert not plan_node("n", other, FILES, HERE).shared


def test_the_disk_is_asked_first() -> None:
    """What does not fit, with a GiB to spare, or cannot be written is refused before a byte is sent."""
    with pytest.raises(CapacityError, match="n has"):
        plan_node("n", there({}, free_bytes=(1 << 30) + 1009), FILES, HERE)
    assert plan_node("n", there({}, free_bytes=(1 << 30) + 1010), FILES, HERE).left_bytes == 1010
    with pytest.raises(StageError, match="cannot be written"):
        plan_node("n", there({}, writable=False), FILES, HERE)
    full = there({file.path: file.size_bytes for file in FILES}, free_bytes=0, writable=False)
    assert plan_node("n", full, FILES, HERE).pieces == ()
