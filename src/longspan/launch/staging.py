"""What each node lacks of a directory: listing -> what to send, from which byte on, and whether it fits. Pure.

Also the few shell programs that run on a node. They take what comes from outside as arguments, never as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longspan.errors import CapacityError, StageError
from longspan.units import format_bytes

# What is on its way carries this suffix, so that a half-sent file is never taken for a whole one.
PART = ".longspan-part"
RESERVE_BYTES = 1 << 30  # left free on the node's disk

_HOME = 'd=$1; case $d in "~/"*) d=$HOME/${d#"~/"};; esac;'
# Arguments: the directory. A directory that is not there yet is measured by its nearest parent.
LISTING = (
    f'{_HOME} p=$d; while [ ! -d "$p" ]; do p=$(dirname -- "$p"); done;'
    ' printf "dir %s\\nfree %s\\nfs %s\\nwritable %s\\nfiles\\n" "$d"'
    ' "$(df -B1 --output=avail -- "$p" | tail -n 1 | tr -d " ")" "$(stat -f -c %i -- "$p")" "$(test -w "$p" && echo yes)";'
    ' if [ -d "$d" ]; then find -L "$d" -type f -printf "%s %i %P\\0"; fi'
)
# Takes the rest of one file on standard input. Arguments: the file, its whole size, the suffix. It becomes the file only
# when all of it is there: a connection that breaks ends the input like an end does.
RECEIVE = (
    'mkdir -p -- "$(dirname -- "$1")" && cat >>"$1$3" && size=$(stat -c %s -- "$1$3") &&'
    ' if [ "$size" = "$2" ]; then mv -f -- "$1$3" "$1"; else echo "has $size of $2 bytes" >&2; exit 1; fi'
)
# Arguments: the suffix, then the files.
REMOVE = 's=$1; shift; for f in "$@"; do rm -f -- "$f" "$f$s"; done'
REMOVE_DIRECTORY = 'rm -rf -- "$1"'  # argument: the directory
# Takes a secret on standard input. Arguments: the file.
WRITE_PRIVATE = (
    f'{_HOME} umask 077 && mkdir -p -- "$(dirname -- "$d")" && cat >"$d.new" && mv -f -- "$d.new" "$d"'
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be on every node; `path` is relative to the directory."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What a node said.

    Attributes:
        directory: absolute. filesystem: an id of the file system.
        files: path to (bytes, inode); links count as what they point to.
    """

    directory: str
    free_bytes: int
    filesystem: str
    writable: bool
    files: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One file to send, from `offset` on."""

    path: str
    size_bytes: int
    offset: int

    @property
    def left_bytes(self) -> int:
        """What is still to be sent."""
        return self.size_bytes - self.offset


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What is to be done for one node.

    Attributes:
        shared: the node sees the very same files (a shared file system): nothing is sent.
        present_bytes: what is there already, parts of files included.
    """

    node: str
    directory: str
    pieces: tuple[Piece, ...]
    shared: bool
    present_bytes: int

    @property
    def left_bytes(self) -> int:
        """What is still to be sent."""
        return sum(piece.left_bytes for piece in self.pieces)


def parse_listing(text: str, node: str) -> Listing:
    """Reads what LISTING printed.

    Raises:
        StageError: it is not that.
    """
    head, _, rest = text.partition("\nfiles\n")
    try:
        fields = dict(line.split(" ", 1) for line in head.split("\n"))
        files = {}
        for entry in filter(None, rest.split("\0")):
            size, inode, path = entry.split(" ", 2)
            files[path] = (int(size), int(inode))
        return Listing(fields["dir"], int(fields["free"]), fields["fs"], fields["writable"] == "yes", files)
    except (ValueError, LookupError) as error:
        raise StageError(
            f"{node} cannot list the directory; it said {text[:200]!r}.",
            "It needs a POSIX shell and GNU find, df and stat.",
        ) from error


def is_shared(listing: Listing, here: Listing, files: Sequence[SourceFile]) -> bool:
    """Whether the node has mounted the source itself: same place, same file system, same inodes."""
    return (
        (listing.directory, listing.filesystem) == (here.directory, here.filesystem)
        and bool(files)
        and all(listing.files.get(file.path) == here.files.get(file.path) != None for file in files)  # noqa: E711
    )


def plan_node(node: str, listing: Listing, files: Sequence[SourceFile], here: Listing) -> NodePlan:
    """What to send to a node. A file that is there in its whole size is left: digests tell later whether it is right.

    Args:
        here: the source's directory as this machine lists it.

    Raises:
        CapacityError: it does not fit. StageError: the directory cannot be written.
    """
    total = sum(file.size_bytes for file in files)
    if is_shared(listing, here, files):
        return NodePlan(node, listing.directory, (), True, total)
    pieces = []
    for file in files:
        size, _ = listing.files.get(file.path, (-1, 0))
        if size != file.size_bytes:
            part, _ = listing.files.get(file.path + PART, (0, 0))
            # A part that is too long is of something else; RECEIVE would never take it.
            pieces.append(Piece(file.path, file.size_bytes, part if part <= file.size_bytes else -1))
    wrong = [piece for piece in pieces if piece.offset < 0]
    if wrong:
        raise StageError(
            f"{node} holds {listing.directory}/{wrong[0].path}{PART}, larger than the file itself: a part of another one.",
            "Remove it there.",
        )
    left = sum(piece.left_bytes for piece in pieces)
    if pieces and not listing.writable:
        raise StageError(
            f"{listing.directory} on {node} cannot be written by the user that ssh gives.",
            "Create it there for that user, or choose another directory with --to.",
        )
    if pieces and left + RESERVE_BYTES > listing.free_bytes:
        raise CapacityError(
            f"{node} has {format_bytes(listing.free_bytes)} free for {listing.directory}; {format_bytes(left)} are still to come"
            f" and {format_bytes(RESERVE_BYTES)} stay free.",
            "Free some there, or choose another directory with --to.",
        )
    return NodePlan(node, listing.directory, tuple(pieces), False, total - left)
