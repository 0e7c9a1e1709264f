"""Which bytes of a checkpoint are digested, and what the digests of several nodes say about their copies.

`digest.py` reads the bytes; here is what needs no disk. A digest sees every difference in the bytes that it read, and nothing
else: in sampled mode a single damaged byte is met with the probability `coverage`. It cannot see damage that happens after
reading (memory, a wrong shard, a broken kernel), and it believes the node that reports it.

Use: the controller draws a nonce, every agent returns `digest_checkpoint(path, nonce)`, then `compare_copies(digests, head)`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from longspan.finding import Evidence, Finding
from longspan.units import GIB, MIB, format_bytes

Mode = Literal["whole", "sampled"]
Block = tuple[int, int]  # offset and length in bytes

# Up to here every byte is read: blake2b takes about 1 s a GiB and core, so this stays within seconds.
WHOLE_LIMIT_BYTES = 4 * GIB
# Files up to here are always read whole, so that config, tokenizer and index never escape.
SMALL_FILE_BYTES = 64 * MIB
LEAF_BYTES = 16 * MIB
SAMPLE_BLOCK_BYTES = MIB
SAMPLE_BUDGET_BYTES = GIB
SAMPLE_BLOCKS_MIN = 8
_DIGEST_BYTES = 32

# What vLLM reads from a model's directory. Anything else (README, licence, pictures) may differ without consequence.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# These also say which model it is: where one of them differs too, the copy is another revision, not a damaged one.
OTHER_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of a copy. `path` is relative to the checkpoint; `digest` is hexadecimal blake2b over the blocks read."""

    path: str
    size_bytes: int
    digest: str
    mode: Mode
    bytes_read: int

    def to_json(self) -> dict[str, Any]:
        """The form that agents send."""
        return {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "digest": self.digest,
            "mode": self.mode,
            "bytes_read": self.bytes_read,
        }


@dataclass(frozen=True, slots=True)
class CheckpointDigest:
    """All files of one node's copy. Two are comparable when they were made with the same nonce."""

    path: str
    nonce: str
    files: tuple[FileDigest, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def bytes_read(self) -> int:
        """The bytes that went into the digests."""
        return sum(file.bytes_read for file in self.files)

    @property
    def mode(self) -> Mode:
        """Whole only if every file was read whole."""
        return "whole" if all(file.mode == "whole" for file in self.files) else "sampled"

    @property
    def coverage(self) -> float:
        """The share of the bytes that was read: the chance to meet one damaged byte at a random place."""
        return self.bytes_read / self.size_bytes if self.size_bytes else 1.0

    @property
    def identity(self) -> str:
        """One digest over all files; equal copies read alike have the same."""
        state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for file in sorted(self.files, key=lambda file: file.path):
            state.update(f"{file.path}\0{file.size_bytes}\0{file.digest}\0".encode())
        return state.hexdigest()

    @property
    def fingerprint(self) -> str:
        """A short digest that two starts can compare: of a file that is only sampled, at places which the nonce decides, its
        size alone goes in."""
        state = hashlib.blake2b(digest_size=8)
        for file in sorted(self.files, key=lambda file: file.path):
            whole = file.digest if file.mode == "whole" else ""
            state.update(f"{file.path}\0{file.size_bytes}\0{whole}\0".encode())
        return state.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The form that agents send."""
        return {
            "path": self.path,
            "nonce": self.nonce,
            "identity": self.identity,
            "coverage": self.coverage,
            "files": [file.to_json() for file in self.files],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CheckpointDigest":
        """Reads what `to_json` wrote; derived values are computed again, not believed.

        Raises:
            KeyError: a field is missing.
        """
        files = tuple(
            FileDigest(f["path"], f["size_bytes"], f["digest"], f["mode"], f["bytes_read"])
            for f in data["files"]
        )
        return cls(data["path"], data["nonce"], files)


def whole_blocks(size_bytes: int) -> Iterator[Block]:
    """The whole file, cut so that several threads can digest it."""
    for offset in range(0, size_bytes, LEAF_BYTES):
        yield offset, min(LEAF_BYTES, size_bytes - offset)


def sampled_blocks(
    path: str, size_bytes: int, *, nonce: str, count: int, header_bytes: int
) -> Iterator[Block]:
    """The header, the last block, and one block at a place that the nonce decides in each of `count` equal stretches.

    Stretches, not free draws: no block is drawn twice, and every byte has the same chance. The blocks do not overlap, their
    order is ascending, and they are the same on every node that has the same nonce, path, size and header.
    """
    head = min(max(header_bytes, SAMPLE_BLOCK_BYTES), size_bytes)
    tail = max(size_bytes - SAMPLE_BLOCK_BYTES, head)
    # What does not fill a block is read with the header, so that no byte is out of every nonce's reach.
    head += (tail - head) % SAMPLE_BLOCK_BYTES
    yield 0, head
    slots = (tail - head) // SAMPLE_BLOCK_BYTES
    count = min(count, slots)
    for index in range(count):
        first, last = index * slots // count, (index + 1) * slots // count
        seed = hashlib.blake2b(f"{nonce}\0{path}\0{index}".encode(), digest_size=8).digest()
        slot = first + int.from_bytes(seed, "big") % (last - first)
        yield head + slot * SAMPLE_BLOCK_BYTES, SAMPLE_BLOCK_BYTES
    if tail < size_bytes:
        yield tail, size_bytes - tail


def sample_count(size_bytes: int, total_bytes: int) -> int:
    """How many random blocks a file gets when the checkpoint has `total_bytes`: its share of the budget, never below eight."""
    share = SAMPLE_BUDGET_BYTES * size_bytes // max(total_bytes, 1)
    return max(SAMPLE_BLOCKS_MIN, share // SAMPLE_BLOCK_BYTES)


def join_digests(size_bytes: int, leaves: list[bytes]) -> str:
    """One digest for a file out of those of its blocks, in order."""
    state = hashlib.blake2b(f"{size_bytes}\0".encode(), digest_size=_DIGEST_BYTES)
    for leaf in leaves:
        state.update(leaf)
    return state.hexdigest()


def leaf_digest(data: bytes | memoryview) -> bytes:
    """The digest of one block."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class _Difference:
    path: str
    kind: Literal["missing", "extra", "differs"]
    text: str
    good_node: str


def compare_copies(digests: Mapping[str, CheckpointDigest | None], head: str) -> tuple[Finding, ...]:
    """Names every node and file whose copy is not that of the others; nothing is returned where all agree.

    Which copy is right is decided file by file: by a strict majority of the nodes where there is one, else the head's copy
    counts, and the finding says so.

    Args:
        digests: node name to its digest; None where the node has no such directory; without files where the engine will
            fetch the checkpoint from the hub, which is compared with nothing.
        head: the node whose copy decides where there is no majority.

    Raises:
        ValueError: the digests were made with different nonces, or the head is not among them.
    """
    if head not in digests:
        raise ValueError(f"the head {head!r} is not among the nodes")
    if len({digest.nonce for digest in digests.values() if digest}) > 1:
        raise ValueError("digests made with different nonces cannot be compared")
    findings = [_missing_copy(node) for node, digest in digests.items() if digest is None]
    copies = {node: digest for node, digest in digests.items() if digest is not None and digest.files}
    if not copies:
        return tuple(findings)
    judge = head if head in copies else next(iter(copies))
    tables = {node: {file.path: file for file in digest.files} for node, digest in copies.items()}
    differences: dict[str, list[_Difference]] = {}
    by_majority = True
    for path in sorted({path for table in tables.values() for path in table}):
        values = {node: _value(tables, table.get(path)) for node, table in tables.items()}
        common, votes = Counter(values.values()).most_common(1)[0]
        if votes * 2 <= len(values):
            common, by_majority = values[judge], False
        good_node = next(node for node, value in values.items() if value == common)
        for node, value in values.items():
            if value != common:
                differences.setdefault(node, []).append(_difference(path, value, common, good_node))
    for node, found in differences.items():
        findings.extend(_node_findings(node, copies[node], found, judge, by_majority=by_majority))
    return tuple(findings)


def _value(tables: Mapping[str, Mapping[str, FileDigest]], file: FileDigest | None) -> tuple[int, str] | None:
    """What is compared. Where one node read the file whole and another sampled it, only the size can be."""
    if file is None:
        return None
    modes = {table[file.path].mode for table in tables.values() if file.path in table}
    return file.size_bytes, file.digest if len(modes) == 1 else ""


def _difference(
    path: str, value: tuple[int, str] | None, common: tuple[int, str] | None, good_node: str
) -> _Difference:
    if value is None:
        return _Difference(path, "missing", f"{good_node} has it", good_node)
    if common is None:
        return _Difference(path, "extra", f"{good_node} does not have it", good_node)
    if value[0] != common[0]:
        text = f"{value[0]} bytes, {common[0]} on {good_node}"
    else:
        text = f"blake2b {value[1][:16]}…, {common[1][:16]}… on {good_node}"
    return _Difference(path, "differs", text, good_node)


def _missing_copy(node: str) -> Finding:
    return Finding(
        subject=node,
        severity="error",
        cause="checkpoint-missing",
        summary=f"{node} has no copy of the checkpoint, so its ranks cannot load their weights.",
        remedy="Copy the checkpoint to the same path on this node, or mount the shared directory there.",
    )


def _node_findings(
    node: str, copy: CheckpointDigest, found: list[_Difference], judge: str, *, by_majority: bool
) -> Iterator[Finding]:
    whose = "the other nodes'" if by_majority else f"{judge}'s (no majority decides which one is right)"
    read = "every byte was read" if copy.mode == "whole" else f"{copy.coverage:.2%} of the bytes were read"
    source = f"blake2b of {format_bytes(copy.bytes_read)}, {read}"

    def evidence(items: list[_Difference]) -> tuple[Evidence, ...]:
        return tuple(Evidence(f"{copy.path}/{item.path}", 0, f"{item.kind}: {item.text}") for item in items)

    def remedy(item: _Difference) -> str:
        return f"Copy it again: `rsync -cLr {item.good_node}:{copy.path}/ {copy.path}/` on {node}, then start again."

    names_revision = any(item.path.endswith(OTHER_SUFFIXES) for item in found)
    if len(found) > 1 and names_revision:
        paths = ", ".join(item.path for item in found[:4]) + (", …" if len(found) > 4 else "")
        yield Finding(
            subject=node,
            severity="error",
            cause="checkpoint-revision-differs",
            summary=f"{node} holds another revision of the checkpoint: {len(found)} files are not {whose}: {paths}.",
            evidence=evidence(found),
            remedy=remedy(found[0]),
            source=source,
        )
        return
    for item in found:
        text = {
            "missing": f"{item.path} is missing on {node}: {item.text}.",
            "extra": f"{item.path} is on {node} only: {item.text}.",
            "differs": f"{item.path} on {node} is not {whose}: {item.text}.",
        }[item.kind]
        harmless = item.kind == "extra" and not item.path.endswith(WEIGHT_SUFFIXES)
        yield Finding(
            subject=node,
            severity="warning" if harmless else "error",
            cause=f"checkpoint-file-{item.kind}",
            summary=text,
            evidence=evidence([item]),
            remedy=f"Look at {copy.path}/{item.path} on {node}, and remove it if it does not belong to the model."
            if item.kind == "extra"
            else remedy(item),
            source=source,
        )
