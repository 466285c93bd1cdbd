"""What a model is, as hashes: its weights, its tokenizer and its chat template, each by itself.

They tell why two answers differ. All of it is read from the files; nothing is loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from attrs import frozen

from .gguf import metadata_spans, read_header

BLOCK = 1 << 20


@frozen(kw_only=True)
class Stamp:
    """What changes whenever a file's content does, for all that a file system tells without reading it."""

    size_bytes: int
    mtime_ns: int
    inode: int


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """A file's stamp. Raises OSError."""
    status = os.stat(path)
    return Stamp(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def weights_sha256(parts: Sequence[str]) -> str:
    """The SHA-256 of a model's file, or of all parts of a split set one after the other. About a second a GB."""
    digest = hashlib.sha256()
    for part in parts:
        with open(part, "rb", buffering=0) as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def tokenizer_hash(path: str | os.PathLike[str]) -> str:
    """A hash of everything the header says of the tokenizer but its chat template, whatever the order of the keys.

    Raises InvalidGGUF.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for _, (start, end) in sorted(metadata_spans(path, "tokenizer.ggml.").items()):
            file.seek(start)
            digest.update(file.read(end - start))
    return f"sha256:{digest.hexdigest()}"


def template_hash(path: str | os.PathLike[str], names: Sequence[str] = (), override: str | None = None) -> str:
    """A hash of the text of the chat template that would be chosen for the model. Raises InvalidGGUF and BadInput."""
    from ..conversation.templates import ChatTemplate

    chosen = ChatTemplate.choose(read_header(path).metadata, names, override)
    return "sha256:" + hashlib.sha256(chosen.text.encode("utf-8", "surrogatepass")).hexdigest()
