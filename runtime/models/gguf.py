"""Reads a GGUF file's header without trusting it: bounded in time and memory, whatever the bytes.

Counts and lengths are compared with the file's own size before anything is read or allocated for them, the
file is read by `pread` (a mapped file that shrinks would kill the process), and long arrays such as a
tokenizer's are walked over, not built. Layout after the GGUF specification:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from ...errors import ModelLoadFailed
from .ggml_types import REMOVED_TYPES, TYPES
from .header import GGUFHeader, Kind, LargeArray, RawTensor, SplitInfo, Tensor

__all__ = [
    "GGUFHeader",
    "InvalidGGUF",
    "Kind",
    "LargeArray",
    "SplitInfo",
    "Tensor",
    "header_hash",
    "metadata_spans",
    "read_header",
    "token_texts",
]

MAX_KEYS: Final = 65_536
MAX_TENSORS: Final = 1_000_000
MAX_STRING_BYTES: Final = 16 << 20
MAX_ELEMENTS: Final = 4_000_000
"""Array elements walked one by one in a file; the largest vocabularies with their merges have under a million."""
SMALL_ARRAY: Final = 1024
"""Arrays up to this length become tuples."""
MAX_NESTING: Final = 4
MAX_RECENT: Final = 4
SETTLED_NS: Final = 2_000_000_000
WINDOW: Final = 64 << 10
WALK_WINDOW: Final = 1 << 20

_SCALARS: Final = {
    0: ("u8", struct.Struct("<B")),
    1: ("i8", struct.Struct("<b")),
    2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")),
    4: ("u32", struct.Struct("<I")),
    5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("u64", struct.Struct("<Q")),
    11: ("i64", struct.Struct("<q")),
    12: ("f64", struct.Struct("<d")),
}
_STRING: Final = 8
_ARRAY: Final = 9
_TYPE_NAMES: Final = {number: name for number, (name, _) in _SCALARS.items()} | {_STRING: "string", _ARRAY: "array"}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_DIMS_V1: Final = {n: struct.Struct(f"<I{n}IIQ") for n in range(5)}
_DIMS: Final = {n: struct.Struct(f"<I{n}QIQ") for n in range(5)}
_TENSOR_BYTES: Final = 8 + 64 + 4 + 4 * 8 + 4 + 8
"""The longest entry of the tensor table."""
_LIKELY_STRING: Final = 11
"""Bytes that a token surely takes on average, its length included; a jump that goes too far is found out."""
_NEXT_KEY: Final = b"\0\0\0\0\0\0\0tokenizer."
"""How the key after a tokenizer's array begins: the high bytes of its length, then its text."""

_recent: Final[dict[tuple[int, int, int, int], GGUFHeader]] = {}
"""The headers last read by jumping, under device, inode, size and mtime of their files."""


class InvalidGGUF(ModelLoadFailed):
    """A file that is not, or not wholly, a GGUF model; `reason` says why in plain words."""

    def __init__(self, reason: str, **data: Any) -> None:
        super().__init__(reason, **data)
        self.reason = reason


def read_header(path: str | os.PathLike[str], *, exact: bool = True) -> GGUFHeader:
    """Read and check a file's header. Raises InvalidGGUF, also where the file cannot be opened.

    `exact=False` may jump over a tokenizer's arrays to the next key it finds instead of walking every token;
    everything after the jump is still checked to the last tensor, and where that fails the file is walked. A
    file made to deceive could hide keys from a jump, so a scan jumps and a load walks.
    """
    fd = _open(path)
    try:
        status = os.fstat(fd)
        if exact:
            return _Parser(fd, status.st_size, jump=False).header()
        stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        known = _recent.get(stamp)
        return known if known is not None else _remember(stamp, _jumped(fd, status.st_size))
    except OSError as error:
        raise InvalidGGUF(f"cannot be read: {(error.strerror or str(error)).lower()}") from error
    finally:
        os.close(fd)


def _jumped(fd: int, size: int) -> GGUFHeader:
    try:
        return _Parser(fd, size, jump=True).header()
    except InvalidGGUF:
        # the exact walk finds the true reason, or that the jump was wrong
        return _Parser(fd, size, jump=False).header()


def _remember(stamp: tuple[int, int, int, int], header: GGUFHeader) -> GGUFHeader:
    """Keep a few headers: a dry run asks for the same one to scan, to hash and to estimate.

    One of a file written just now is not kept: written again at once, the file could have the same stamp.
    """
    if time.time_ns() - stamp[3] > SETTLED_NS:
        if len(_recent) >= MAX_RECENT:
            _recent.clear()
        _recent[stamp] = header
    return header


def header_hash(path: str | os.PathLike[str]) -> str:
    """`sha256:…` over the header: metadata and tensor table, all bytes before the weights."""
    import hashlib  # not above: it loads OpenSSL, which a scan has no use for

    end = read_header(path, exact=False).data_offset
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while end > 0 and (block := file.read(min(end, WALK_WINDOW))):
            digest.update(block)
            end -= len(block)
    return f"sha256:{digest.hexdigest()}"


def metadata_spans(path: str | os.PathLike[str], prefix: str) -> dict[str, tuple[int, int]]:
    """Where the keys that begin with `prefix` lie in the file, each with its value: first byte and the one after."""
    fd = _open(path)
    try:
        parser = _Parser(fd, os.fstat(fd).st_size, jump=False)
        _, n_keys = parser._preamble()
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(n_keys):
            start = parser.base + parser.pos
            key = parser._string()
            parser._value(parser._number(_U32), key, 0)
            if key.startswith(prefix):
                spans[key] = (start, parser.base + parser.pos)
        return spans
    finally:
        os.close(fd)


def token_texts(path: str | os.PathLike[str], header: GGUFHeader, ids: tuple[int, ...]) -> dict[int, str]:
    """The tokenizer's texts of a few token ids, such as `bos`; ids it does not have are left out."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    wanted = {number for number in ids if number >= 0}
    if isinstance(tokens, tuple):
        return {number: str(tokens[number]) for number in wanted if number < len(tokens)}
    if not isinstance(tokens, LargeArray) or not wanted:
        return {}
    fd = _open(path)
    try:
        parser = _Parser(fd, os.fstat(fd).st_size, jump=False, at=tokens.offset, version=header.version)
        return parser.pick_strings(tokens.count, wanted)
    finally:
        os.close(fd)


def _open(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file: opening a pipe or a device could block for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidGGUF(f"cannot be opened: {(error.strerror or str(error)).lower()}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidGGUF("is not a regular file")
    return fd


class _Parser:
    """A window that slides over the file, and the position in it."""

    def __init__(self, fd: int, size: int, *, jump: bool, at: int = 0, version: int = 3) -> None:
        self.fd, self.size, self.jump, self.version = fd, size, jump, version
        self.base, self.pos, self.data = at, 0, b""
        self.elements = 0

    def header(self) -> GGUFHeader:
        n_tensors, n_keys = self._preamble()
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._string()
            if key in metadata:
                raise InvalidGGUF(f"has the key `{key[:64]}` twice")
            metadata[key] = self._value(self._number(_U32), key, 0)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 30:
            raise InvalidGGUF(f"has the alignment {alignment!r}, which is not a power of two")
        tensors, end = self._tensors(n_tensors, alignment)
        table_end = self.base + self.pos
        if table_end > self.size:
            raise InvalidGGUF(f"is truncated: the header goes on beyond its {self.size} bytes")
        data_offset = -(-table_end // alignment) * alignment if tensors else table_end
        self._check_extent(tensors, data_offset, end)
        return GGUFHeader(
            version=self.version,
            metadata=metadata,
            raw_tensors=tensors,
            alignment=alignment,
            data_offset=data_offset,
            file_size=self.size,
        )

    def pick_strings(self, count: int, wanted: set[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        done = 0
        for number in sorted(wanted):
            if number >= count:
                break
            self._skip_strings(number - done)
            found[number] = self._string()
            done = number + 1
        return found

    def _preamble(self) -> tuple[int, int]:
        if self.size == 0:
            raise InvalidGGUF("is empty")
        magic = os.pread(self.fd, 8, 0)
        if magic[:4] != b"GGUF":
            raise InvalidGGUF(_not_gguf(magic))
        self._need(8)
        self.pos = 4
        self.version = self._number(_U32)
        if self.version & 0xFFFF == 0 and self.version:
            raise InvalidGGUF("is big-endian; convert it to little-endian with llama.cpp's gguf_convert_endian.py")
        if not 1 <= self.version <= 3:
            raise InvalidGGUF(f"has the GGUF version {self.version}; versions 1 to 3 are known")
        n_tensors, n_keys = self._count(), self._count()
        # The shortest key takes 13 bytes and the shortest tensor 24, so a count the file cannot hold ends here.
        if n_keys > MAX_KEYS or n_keys * 9 > self.size:
            raise InvalidGGUF(f"claims {n_keys} keys, more than its {self.size} bytes could hold or a model needs")
        if n_tensors > MAX_TENSORS or n_tensors * 20 > self.size:
            raise InvalidGGUF(f"claims {n_tensors} tensors, more than its {self.size} bytes could hold or a model has")
        return n_tensors, n_keys

    def _need(self, n: int) -> None:
        """Make `n` bytes from the position on available in the window."""
        if self.pos + n > len(self.data):
            self._refill(n)

    def _refill(self, n: int, window: int = WINDOW) -> None:
        at = self.base + self.pos
        if at + n > self.size:
            raise InvalidGGUF(f"is truncated: the header goes on beyond its {self.size} bytes")
        self.data = os.pread(self.fd, max(n, window), at)
        self.base, self.pos = at, 0
        if len(self.data) < n:
            raise InvalidGGUF("became shorter while it was read")

    def _number(self, layout: struct.Struct) -> Any:
        self._need(layout.size)
        (value,) = layout.unpack_from(self.data, self.pos)
        self.pos += layout.size
        return value

    def _count(self) -> int:
        """A count or length: 32 bits in version 1, 64 since."""
        return int(self._number(_U32 if self.version == 1 else _U64))

    def _string(self) -> str:
        length = self._count()
        if length > MAX_STRING_BYTES:
            raise InvalidGGUF(f"claims a string of {length} bytes; at most {MAX_STRING_BYTES} are read")
        self._need(length)
        start = self.pos
        self.pos += length
        return self.data[start : self.pos].decode("utf-8", "backslashreplace")

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind][1])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key, depth + 1)
        raise InvalidGGUF(f"has a value of the unknown type {kind} at the key `{key[:64]}`")

    def _array(self, key: str, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise InvalidGGUF(f"nests arrays more than {MAX_NESTING} deep at the key `{key[:64]}`")
        kind, count = self._number(_U32), self._count()
        if kind not in _TYPE_NAMES:
            raise InvalidGGUF(f"has an array of the unknown type {kind} at the key `{key[:64]}`")
        at = self.base + self.pos
        least = _SCALARS[kind][1].size if kind in _SCALARS else (4 if self.version == 1 else 8)
        if count * least > self.size - at:
            raise InvalidGGUF(f"is truncated: the array `{key[:64]}` of {count} elements ends beyond the file")
        if kind in _SCALARS:
            return self._scalar_array(kind, count, at)
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            raise InvalidGGUF(f"has over {MAX_ELEMENTS} strings and arrays inside arrays")
        if count <= SMALL_ARRAY:
            return tuple(self._value(kind, key, depth) for _ in range(count))
        if kind == _ARRAY:
            for _ in range(count):
                self._array(key, depth + 1)
        elif not (self.jump and key.startswith("tokenizer.") and self._jump_strings(count)):
            self._skip_strings(count)
        return LargeArray(_TYPE_NAMES[kind], count, at)

    def _scalar_array(self, kind: int, count: int, at: int) -> Any:
        name, layout = _SCALARS[kind]
        if count > SMALL_ARRAY:
            self.pos += count * layout.size
            return LargeArray(name, count, at)
        self._need(count * layout.size)
        values = struct.unpack_from(f"<{count}{layout.format[-1]}", self.data, self.pos)
        self.pos += count * layout.size
        return values

    def _skip_strings(self, count: int) -> None:
        """Walk over `count` strings. The hot loop of a scan: no method calls, no objects but the length."""
        layout = _U32 if self.version == 1 else _U64
        unpack, width = layout.unpack_from, layout.size
        data, pos, last = self.data, self.pos, len(self.data) - width
        for _ in range(count):
            if pos > last:
                self.pos = pos
                self._refill(width, WALK_WINDOW)
                data, pos, last = self.data, 0, len(self.data) - width
            pos += width + unpack(data, pos)[0]
        self.pos = pos

    def _jump_strings(self, count: int) -> bool:
        """Go to where the next tokenizer key seems to begin; False leaves the position where it was."""
        if self.version == 1:
            return False
        at = self.base + self.pos + _LIKELY_STRING * count - 1
        while at < self.size:
            block = os.pread(self.fd, WALK_WINDOW // 16, at)
            if (found := block.find(_NEXT_KEY, 1)) > 0:
                self.base, self.pos, self.data = at + found - 1, 0, block[found - 1 :]
                return True
            if len(block) <= len(_NEXT_KEY):
                return False
            at += len(block) - len(_NEXT_KEY)
        return False

    def _tensors(self, count: int, alignment: int) -> tuple[tuple[RawTensor, ...], int]:
        """The tensor table and the end of the last tensor, counted from the data's start."""
        tensors: list[RawTensor] = []
        names: set[bytes] = set()
        forms: dict[tuple[int, ...], tuple[tuple[int, ...], int, int]] = {}  # layers repeat their shapes and types
        expected = 0
        length_layout, layouts = (_U32, _DIMS_V1) if self.version == 1 else (_U64, _DIMS)
        width, length_at = length_layout.size, length_layout.unpack_from
        data, pos = self.data, self.pos
        try:
            for _ in range(count):
                if pos + _TENSOR_BYTES > len(data) and self.base + len(data) < self.size:
                    self.pos = pos
                    self._refill(0)
                    data, pos = self.data, 0
                start = pos + width
                end = start + length_at(data, pos)[0]
                if end - start > 63:  # ggml's GGML_MAX_NAME, less the final zero
                    raise InvalidGGUF(f"has a tensor name of {end - start} bytes; ggml takes 63")
                layout = layouts.get(data[end]) or _too_many_dimensions(data[end])
                fields = layout.unpack_from(data, end)
                name, form, offset = data[start:end], fields[:-1], fields[-1]
                known = forms.get(form)
                if known is None:
                    known = forms[form] = _form(name, form)
                shape, kind, n_bytes = known
                if name in names:
                    raise InvalidGGUF(f"has the tensor `{_text(name)}` twice")
                if offset != expected:
                    raise InvalidGGUF(f"has the tensor `{_text(name)}` at {offset} where {expected} is due")
                names.add(name)
                tensors.append((name, shape, kind, offset, n_bytes))
                expected = -(-(offset + n_bytes) // alignment) * alignment
                pos = end + layout.size
            self.pos = pos
        except (struct.error, IndexError):
            raise InvalidGGUF(f"is truncated: the tensor table goes on beyond its {self.size} bytes") from None
        return tuple(tensors), expected

    def _check_extent(self, tensors: tuple[RawTensor, ...], data_offset: int, end: int) -> None:
        if not tensors:
            return
        name, _shape, _kind, offset, n_bytes = tensors[-1]
        last = data_offset + offset + n_bytes
        if last > self.size:
            raise InvalidGGUF(
                f"is truncated: the last tensor `{_text(name)}` ends at byte {last}, the file at {self.size}",
                expected_bytes=last,
                actual_bytes=self.size,
            )


def _too_many_dimensions(n_dims: int) -> NoReturn:
    raise InvalidGGUF(f"has a tensor with {n_dims} dimensions; ggml takes 4")


def _form(name: bytes, form: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """Shape, type and bytes of a tensor from the numbers of its entry: how many dimensions, each of them, the type."""
    n_dims, *shape, kind = form
    n_bytes = _tensor_bytes(name, shape, kind)
    if n_dims > 4:
        _too_many_dimensions(n_dims)
    return tuple(shape), kind, n_bytes


def _tensor_bytes(name: bytes, shape: Sequence[int], kind: int) -> int:
    known = TYPES.get(kind)
    if known is None:
        what = "is no longer supported" if kind in REMOVED_TYPES else "is unknown"
        raise InvalidGGUF(f"has the tensor `{_text(name)}` of type {kind}, which {what}")
    n_elements = 1
    for length in shape:
        n_elements *= length
    if n_elements >= 1 << 63:
        raise InvalidGGUF(f"has the tensor `{_text(name)}` with {n_elements} elements")
    block = known[1]
    if block > 1 and shape and shape[0] % block:
        raise InvalidGGUF(f"has rows of {shape[0]} in the tensor `{_text(name)}`; {known[0]} has blocks of {block}")
    return n_elements // block * known[2]


def _not_gguf(magic: bytes) -> str:
    if magic.lstrip()[:1] == b"<":
        return "is not a GGUF file: it looks like a web page, perhaps an error page saved by a download"
    if magic.startswith(b"version "):
        return "is not a GGUF file: it looks like a Git LFS pointer; fetch the real file with `git lfs pull`"
    if magic[:4] in (b"tjgg", b"fmgg", b"algg", b"lmgg"):
        return "is an older GGML file; convert it to GGUF"
    if magic[:4] == b"FUGG":
        return "is big-endian; convert it to little-endian with llama.cpp's gguf_convert_endian.py"
    if len(magic) < 8 and b"GGUF".startswith(magic[:4]):
        return f"is truncated: it has {len(magic)} bytes"
    return f"is not a GGUF file: it begins with {magic[:4]!r}"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
