"""A request's outputs as OpenAI's objects: a conversation's answer, and the continuation of a text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from .events import Delta

if TYPE_CHECKING:
    from ..runtime.conversation.reply import ReplyFormat, ReplyParser
    from ..runtime.types import Done, Finished, Piece, Started, Timings, TokenLogprob, Usage


@define(kw_only=True)
class Answer:
    """What one conversation was answered so far, taken apart into content, reasoning and tool calls."""

    id: str
    created: int
    model: str
    seed: int | None = None
    notes: list[str] = field(factory=list)
    _format: ReplyFormat | None = field(default=None, init=False)
    _replies: dict[int, ReplyParser] = field(factory=dict, init=False)
    _logprobs: dict[int, list[dict[str, Any]]] = field(factory=dict, init=False)
    _reasons: dict[int, str] = field(factory=dict, init=False)

    def start(self, started: Started) -> None:
        """The prompt is accepted: from here on it is known how to read the text."""
        from ..runtime.conversation.reply import ReplyFormat

        self.notes = list(started.notes)
        self._format = ReplyFormat() if started.reply is None else ReplyFormat.from_dict(started.reply)

    def envelope(self) -> dict[str, Any]:
        """What every chunk of the answer shares, the seed, and the `notes` on its prompt where there are any."""
        head: dict[str, Any] = {"id": self.id, "created": self.created, "model": self.model}
        head["seed"] = self.seed
        return {**head, "notes": self.notes} if self.notes else head

    def piece(self, piece: Piece) -> list[Delta]:
        """The news in a piece of one choice's text; none where it may be the beginning of a tag."""
        news = self._reply(piece.index).feed(piece.text)
        deltas = [Delta(index=piece.index, delta=each.as_openai()) for each in news]
        if piece.logprobs:
            rows = [_logprob(token) for token in piece.logprobs]
            self._logprobs.setdefault(piece.index, []).extend(rows)
            first = deltas.pop(0) if deltas else Delta(index=piece.index, delta={})
            deltas.insert(0, evolve(first, logprobs={"content": rows, "refusal": None}))
        return deltas

    def finished(self, finished: Finished) -> list[Delta]:
        """The end of one choice: text that was held back, then the reason."""
        reply = self._reply(finished.index)
        deltas = [Delta(index=finished.index, delta=news.as_openai()) for news in reply.finish()]
        reason = reply.finish_reason if finished.reason == "stop" else finished.reason
        self._reasons[finished.index] = reason
        return [*deltas, Delta(index=finished.index, delta={}, finish_reason=reason)]

    def _reply(self, index: int) -> ReplyParser:
        if index not in self._replies:
            from ..runtime.conversation.reply import ReplyFormat, ReplyParser

            self._replies[index] = ReplyParser(self._format or ReplyFormat())
        return self._replies[index]

    def completion(self, done: Done) -> dict[str, Any]:
        """The whole answer as OpenAI's `chat.completion`; `seed` and `timings` (in milliseconds) are ours."""
        usage = usage_of(done.usage)
        usage["completion_tokens_details"] = {"reasoning_tokens": done.usage.reasoning_tokens}
        out = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(index) for index in sorted(self._reasons)],
            "usage": usage,
            "seed": self.seed,
            "timings": timings_of(done.timings),
        }
        return {**out, "notes": self.notes} if self.notes else out

    def _choice(self, index: int) -> dict[str, Any]:
        logprobs = self._logprobs.get(index)
        return {
            "index": index,
            "message": self._reply(index).message(),
            "logprobs": None if logprobs is None else {"content": logprobs, "refusal": None},
            "finish_reason": self._reasons[index],
        }


@define(kw_only=True)
class Continuation:
    """How one choice of a text completion goes on."""

    index: int
    reason: str | None = field(default=None, init=False)
    _text: list[str] = field(factory=list, init=False)
    _logprobs: dict[str, list[Any]] | None = field(default=None, init=False)
    _offset: int = field(default=0, init=False)
    _decoder: codecs.IncrementalDecoder = field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False
    )

    def piece(self, piece: Piece) -> Delta:
        """New text, with the log-probabilities in the older shape where there are any."""
        self._text.append(piece.text)
        rows = self._rows(piece.logprobs) if piece.logprobs else None
        return Delta(index=self.index, delta={"content": piece.text}, logprobs=rows)

    def finished(self, reason: str) -> Delta:
        """The end."""
        self.reason = reason
        return Delta(index=self.index, delta={}, finish_reason=reason)

    def choice(self) -> dict[str, Any]:
        """The whole of it, as in a `text_completion`."""
        text = "".join(self._text)
        return {"index": self.index, "text": text, "logprobs": self._logprobs, "finish_reason": self.reason}

    def _rows(self, tokens: tuple[TokenLogprob, ...]) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            text = _text(token.token)
            rows["tokens"].append(text)
            rows["token_logprobs"].append(token.logprob)
            rows["top_logprobs"].append({_text(raw): value for raw, value in token.top})
            rows["text_offset"].append(self._place(token.token))
        if self._logprobs is None:
            self._logprobs = {name: [] for name in rows}
        for name, values in rows.items():
            self._logprobs[name].extend(values)
        return rows

    def _place(self, raw: bytes) -> int:
        """Where a token's text begins in the answer's; all parts of one character begin where that does."""
        if raw and raw[0] & 0xC0 != 0x80:  # nothing goes on what was begun: it is shown as one U+FFFD
            self._offset += len(self._decoder.decode(b"", final=True))
        begins = self._offset
        self._offset += len(self._decoder.decode(raw))
        return begins


def usage_of(*usages: Usage) -> dict[str, Any]:
    """The token counts of all requests together, as OpenAI tells them."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }


def timings_of(timings: Timings) -> dict[str, float]:
    """Milliseconds a request spent."""
    return {
        "queue_ms": round(timings.queue_s * 1000, 3),
        "prefill_ms": round(timings.prefill_s * 1000, 3),
        "decode_ms": round(timings.decode_s * 1000, 3),
        "time_to_first_token_ms": round(timings.time_to_first_token_s * 1000, 3),
    }


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    top = [_token(raw, value) for raw, value in token.top]
    return {**_token(token.token, token.logprob), "top_logprobs": top}


def _token(raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(raw), "logprob": logprob, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    """A token's text; one that is a part of a character is written as its bytes, so that no two look alike."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
