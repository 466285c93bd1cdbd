"""Length-prefixed frames over a pipe: what the pool and its workers speak.

A frame is four bytes of length (big-endian) and that many bytes of msgpack. `FrameDecoder` takes the byte stream in
any split; a length over the bound or a stream that ends inside a frame is a `BrokenStream`, never a wait.
"""

from __future__ import annotations

import os
from typing import Any

import msgpack

from .messages import Message, from_plain, to_plain

MAX_FRAME_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024
_HEADER = 4
_BIG_INT = 1  # msgpack ends at 64 bits, JSON numbers do not


class BrokenStream(Exception):
    """The bytes are no frames: too long, torn, or not what either side writes. The connection is useless after it."""


def encode(message: Message) -> bytes:
    """The message as one frame.

    Raises ValueError for a value that no frame holds: nested deeper than 500 levels, over `MAX_FRAME_BYTES`, not data.
    """
    try:
        body: bytes = msgpack.packb(to_plain(message), default=_pack_extra, unicode_errors="surrogatepass")
    except (TypeError, OverflowError, msgpack.exceptions.PackException) as error:
        raise ValueError(f"the message cannot be sent to the worker: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"the message takes {len(body)} bytes, more than the {MAX_FRAME_BYTES} of a frame")
    return len(body).to_bytes(_HEADER, "big") + body


def _pack_extra(value: Any) -> msgpack.ExtType:
    if isinstance(value, int):
        return msgpack.ExtType(_BIG_INT, hex(value).encode())
    raise TypeError(f"`{type(value).__name__}` is not data")


def _unpack_extra(code: int, data: bytes) -> int:
    if code != _BIG_INT:
        raise ValueError(f"unknown extension type {code}")
    return int(data, 16)


def _decode_body(body: bytes) -> Message:
    try:
        plain = msgpack.unpackb(body, ext_hook=_unpack_extra, unicode_errors="surrogatepass", strict_map_key=False)
        return from_plain(plain)
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.exceptions.UnpackException) as error:
        raise BrokenStream(f"a frame does not hold a message: {error}") from error


class FrameDecoder:
    """Turns a byte stream, split anywhere, into messages."""

    __slots__ = ("_broken", "_buffer")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._broken = False

    def feed(self, data: bytes) -> list[Message]:
        """The messages these bytes complete, in order. Raises BrokenStream, and for ever after the first one."""
        if self._broken:
            raise BrokenStream("the stream broke before")
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        start = 0
        try:
            while len(buffer) - start >= _HEADER:
                size = int.from_bytes(buffer[start : start + _HEADER], "big")
                if size > MAX_FRAME_BYTES:
                    raise BrokenStream(f"a frame announces {size} bytes, more than {MAX_FRAME_BYTES}")
                end = start + _HEADER + size
                if end > len(buffer):
                    break
                messages.append(_decode_body(bytes(buffer[start + _HEADER : end])))
                start = end
        except BrokenStream:
            self._broken = True
            raise
        if start:
            del buffer[:start]
        return messages

    def close(self) -> None:
        """The stream ended. Raises BrokenStream where that tore a frame."""
        if self._buffer and not self._broken:
            raise BrokenStream(f"the stream ended inside a frame, {len(self._buffer)} bytes in")


class FrameReader:
    """Blocking reads of messages from a file descriptor, for the worker's reader thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._decoder = FrameDecoder()

    def read(self) -> list[Message]:
        """At least one message, or an empty list where the stream ended. Raises BrokenStream."""
        while True:
            data = os.read(self._fd, _READ_BYTES)
            if not data:
                self._decoder.close()
                return []
            if messages := self._decoder.feed(data):
                return messages


def write_all(fd: int, data: bytes) -> None:
    """Write the whole of `data` to a blocking descriptor; a pipe takes a large frame in parts."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
