"""llama.cpp through its low-level API: one model, one context, one pool of KV cells for all sequences."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
from attrs import define, field

from ...errors import DecodeFailed, ModelLoadFailed, OutOfMemory
from ..models.devices import add_rpc_server
from ..models.parameters import LoadParameters, require_memory
from ..models.placement import parameters_here
from ..types import LoadSpec, Sampling
from . import Backend, BackendInfo, Batch, Decoded, LoadProgress, LogLine, TokenSampler
from .llama_params import MAX_OUTPUTS, applied_parameters, context_params, left_on_cpu, model_params, what_failed
from .llama_sampler import check_sampling, open_sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SEQUENCES = 256
CPU_IDLE_CELLS = 128
"""Room for the last short conversation: llama.cpp looks at cells in steps of 256, which it shares with the next."""
WARMUP_ROWS = (1, 1, 2, 4, 8, 16, 32)
WARMUP_S = 0.3
INTERRUPTIBLE_ROWS = 48
"""A decode of fewer rows ends sooner than it is worth to look for a cancellation at each node of its graph."""
_LEVELS = {1: "debug", 2: "info", 3: "warning", 4: "error"}


@define
class NativeLog:
    """Where llama.cpp's log lines go, and the last errors among them: its only explanation of a failed load."""

    sink: LogLine
    keeps: bool = True
    """Whether lines are remembered: while a load may want them, since a worker lives for days."""
    errors: list[str] = field(factory=list)
    lines: list[str] = field(factory=list)
    _level: str = "info"
    _text: str = ""

    def write(self, level: int, text: bytes, _user_data: object) -> None:
        """llama.cpp's callback: a piece of a line; level 5 continues the last one."""
        self._level = _LEVELS.get(level, self._level)
        self._text += text.decode("utf-8", "replace")
        while "\n" in self._text:
            line, self._text = self._text.split("\n", 1)
            if self.keeps:
                self.lines.append(line)
                if self._level == "error":
                    self.errors.append(line.strip())
            self.sink(self._level, line)

    def reason(self) -> str:
        """The first error's text, shortened to what a person can use."""
        told = [line.split(": ", 1)[-1] for line in self.errors if line]
        return told[0] if told else "llama.cpp gave no reason"


_log_callback: Any = None
"""Kept alive here: llama.cpp holds only a pointer to it, for as long as the process lives."""


def _redirect_log(log: NativeLog) -> None:
    global _log_callback
    _log_callback = llama_cpp.llama_log_callback(log.write)
    llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))


@define(eq=False)
class _Rows:
    """llama.cpp's batch, allocated once; its arrays are written through numpy views."""

    size: int
    native: Any = field(init=False)
    token: NDArray[np.int32] = field(init=False)
    pos: NDArray[np.int32] = field(init=False)
    seq: NDArray[np.int32] = field(init=False)
    want: NDArray[np.int8] = field(init=False)
    _count: NDArray[np.int32] = field(init=False)
    _pointers: NDArray[np.uint64] = field(init=False)

    def __attrs_post_init__(self) -> None:
        n = self.size
        self.token, self.pos, self.seq = (np.zeros(n, np.int32) for _ in range(3))
        self.want, self._count = np.zeros(n, np.int8), np.ones(n, np.int32)
        self._pointers = np.arange(n, dtype=np.uint64) * 4 + np.uint64(self.seq.ctypes.data)

        def at(array: NDArray[Any], kind: Any) -> Any:
            return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

        self.native = llama_cpp.llama_batch(
            n_tokens=0,
            token=at(self.token, llama_cpp.llama_token),
            pos=at(self.pos, llama_cpp.llama_pos),
            n_seq_id=at(self._count, ctypes.c_int32),
            seq_id=at(self._pointers, ctypes.POINTER(llama_cpp.llama_seq_id)),
            logits=at(self.want, ctypes.c_int8),
        )

    def fill(self, batch: Batch) -> None:
        n = len(batch)
        self.token[:n] = batch.tokens
        self.pos[:n] = batch.positions
        self.seq[:n] = batch.sequences
        self.want[:n] = batch.outputs
        self.native.n_tokens = n


@define(eq=False)
class LlamaBackend:
    """A loaded GGUF. See `Backend`."""

    info: BackendInfo
    model: Any
    context: Any
    vocab: Any
    owns_model: bool = True
    _memory: Any = field(init=False)
    _slides: bool = field(init=False)
    """Whether layers keep a sliding window only."""
    _rows: _Rows = field(init=False)
    _output_of: list[int] = field(factory=list)
    _logits: NDArray[np.float32] | None = None
    _views: dict[tuple[int, int], NDArray[np.float32]] = field(factory=dict)
    """By address and rows: making one takes longer than all else that Python does about a decode."""
    _pieces: dict[int, bytes] = field(factory=dict)
    _visible: frozenset[bytes] = frozenset()
    _interrupted: Callable[[], bool] | None = None
    _abort: Any = field(init=False)
    _spec: LoadSpec | None = None
    _adapters: Sequence[Any] = ()
    _tokenizer: Any = None
    _tokenizer_maker: threading.Thread | None = None

    def __attrs_post_init__(self) -> None:
        self._memory = llama_cpp.llama_get_memory(self.context)
        self._slides = llama_cpp.llama_model_n_swa(self.model) > 0
        self._rows = _Rows(self.info.n_batch)
        self._abort = llama_cpp.ggml_abort_callback(lambda _: self._interrupted is not None and self._interrupted())

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 16
        buffer = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), buffer, size, False, special)
        if count < 0:
            size = -count
            buffer = (llama_cpp.llama_token * size)()
            count = llama_cpp.llama_tokenize(self.vocab, data, len(data), buffer, size, False, special)
        return buffer[:count]

    def piece(self, token: int) -> bytes:
        if token not in self._pieces:
            text = _token_text(self.vocab, token, special=False)
            if not text and self._visible:
                name = _token_text(self.vocab, token, special=True)
                text = name if name in self._visible else text
            self._pieces[token] = text
        return self._pieces[token]

    def show(self, texts: Collection[str]) -> None:
        self._visible = frozenset(text.encode() for text in texts)
        self._pieces.clear()

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None = None) -> Decoded:
        self._rows.fill(batch)
        watched = interrupted is not None and len(batch) >= INTERRUPTIBLE_ROWS
        if watched:
            self._interrupted = interrupted
            llama_cpp.llama_set_abort_callback(self.context, self._abort, None)
        try:
            code = llama_cpp.llama_decode(self.context, self._rows.native)
        finally:
            if watched:
                self._interrupted = None
                llama_cpp.llama_set_abort_callback(self.context, llama_cpp.ggml_abort_callback(), None)
        if code == 1:
            return Decoded.NO_ROOM
        if code == 2:
            return Decoded.INTERRUPTED
        if code:
            raise DecodeFailed(f"llama.cpp could not compute a batch of {len(batch)} tokens (code {code})")
        self._map_outputs(batch)
        return Decoded.DONE

    def _map_outputs(self, batch: Batch) -> None:
        count, self._output_of = 0, []
        for wanted in batch.outputs:
            self._output_of.append(count if wanted else -1)
            count += wanted
        self._logits = None
        if count:
            pointer = llama_cpp.llama_get_logits(self.context)  # waits for the device
            at = ctypes.addressof(pointer.contents), count
            if at not in self._views:
                array = (ctypes.c_float * (count * self.info.n_vocab)).from_address(at[0])
                self._views[at] = np.ctypeslib.as_array(array).reshape(count, self.info.n_vocab)
            self._logits = self._views[at]

    def logits(self, row: int) -> NDArray[np.float32]:
        assert self._logits is not None, "the row has no logits"
        view: NDArray[np.float32] = self._logits[self._output_of[row]]
        return view

    def check_sampling(self, sampling: Sampling) -> None:
        check_sampling(sampling, self.info.n_vocab)

    def open_sampler(self, sampling: Sampling, seed: int, prompt: Sequence[int]) -> TokenSampler:
        return open_sampler(self, sampling, seed, prompt)

    def copy(self, source: int, target: int, end: int) -> None:
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, end)

    def remove(self, sequence: int, start: int) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, start or -1, -1):
            raise DecodeFailed(f"llama.cpp could not cut sequence {sequence} at position {start}")
        if self._slides and not start and self._is_empty():
            # it would go on where the window's cells wrapped, and which cells are used decides how sums round
            llama_cpp.llama_memory_clear(self._memory, False)

    def _is_empty(self) -> bool:
        return all(llama_cpp.llama_memory_seq_pos_max(self._memory, each) < 0 for each in range(self.info.n_sequences))

    def save(self, sequence: int) -> Any:
        size = llama_cpp.llama_state_seq_get_size(self.context, sequence)
        data = np.empty(size, np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if llama_cpp.llama_state_seq_get_data(self.context, pointer, size, sequence) != size:
            raise DecodeFailed(f"llama.cpp could not copy the cells of sequence {sequence}")
        return data

    def restore(self, saved: Any, sequence: int) -> bool:
        pointer = saved.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if llama_cpp.llama_state_seq_set_data(self.context, pointer, len(saved), sequence):
            return True
        self.remove(sequence, 0)
        return False

    def open_lane(self) -> Backend:
        assert self._spec is not None
        params = context_params(self._spec, n_ctx=self.info.n_ctx, n_sequences=1, n_batch=self.info.n_batch)
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise OutOfMemory("there is no memory for the strict lane's own context")
        _set_adapters(context, self._adapters, self._spec)
        from attrs import evolve

        info = evolve(self.info, n_ctx_pool=self.info.n_ctx, n_slots=1, n_sequences=1)
        lane = LlamaBackend(info, self.model, context, self.vocab, owns_model=False)
        lane._pieces, lane._visible, lane._spec = self._pieces, self._visible, self._spec
        return lane

    def grammar_tokenizer(self) -> Any:
        if self._tokenizer_maker is not None:
            self._tokenizer_maker.join()
        if self._tokenizer is None:
            self._make_tokenizer()
        return self._tokenizer

    def make_tokenizer_beside(self) -> None:
        """Make the grammar tokenizer in a thread of its own: no request should wait for it."""
        self._tokenizer_maker = threading.Thread(target=self._make_tokenizer, name="grammar-tokenizer", daemon=True)
        self._tokenizer_maker.start()

    def _make_tokenizer(self) -> None:
        import llguidance

        tokens = [_grammar_text(self.vocab, token) for token in range(self.info.n_vocab)]
        native = llama_cpp.llama_cpp._lib.llama_tokenize
        self._tokenizer = llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=tokens,
            vocab_ptr=self.vocab,
            tokenize_fptr=ctypes.cast(native, ctypes.c_void_p).value,
            eos_token=list(self.info.end_tokens),
            slices=None,
        )

    def close(self) -> None:
        if self._tokenizer_maker is not None:
            self._tokenizer_maker.join()  # it reads the vocabulary that goes with the model
        if self.context is not None:
            llama_cpp.llama_free(self.context)
            self.context = None
            if self.owns_model:
                llama_cpp.llama_model_free(self.model)


def _token_text(vocab: Any, token: int, *, special: bool) -> bytes:
    buffer = ctypes.create_string_buffer(64)
    count = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    if count < 0:
        buffer = ctypes.create_string_buffer(-count)
        count = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    return buffer.raw[:count]


def _grammar_text(vocab: Any, token: int) -> bytes:
    """A token as llguidance reads it: what is no text begins with the byte 0xff."""
    text = _token_text(vocab, token, special=True)
    attributes = llama_cpp.llama_vocab_get_attr(vocab, token)
    user_defined = attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
    marked = user_defined and text.startswith(b"<") and text.endswith(b">")
    return b"\xff" + text if marked or attributes & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL else text


def _control_texts(vocab: Any) -> tuple[str, ...]:
    marked = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    tokens = range(llama_cpp.llama_vocab_n_tokens(vocab))
    found = [token for token in tokens if llama_cpp.llama_vocab_get_attr(vocab, token) & marked]
    return tuple(_token_text(vocab, token, special=True).decode("utf-8", "replace") for token in found)


def _metadata(model: Any) -> dict[str, str]:
    out: dict[str, str] = {}

    def text(read: Callable[..., int], index: int) -> str:
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = read(model, index, buffer, size)
            if count < size:
                return buffer.value.decode("utf-8", "replace")
            size = count + 1

    for i in range(llama_cpp.llama_model_meta_count(model)):
        key = text(llama_cpp.llama_model_meta_key_by_index, i)
        out[key] = text(llama_cpp.llama_model_meta_val_str_by_index, i)
    return out


def open_llama(spec: LoadSpec, on_progress: LoadProgress, on_log: LogLine) -> LlamaBackend:
    """Load a GGUF by the parameters that suit this machine. Raises ModelLoadFailed, OutOfMemory, BadInput.

    `options["rpc_servers"]` adds devices by `HOST:PORT`, for tests.
    """
    if not Path(spec.path).is_file():
        raise ModelLoadFailed(f"there is no file `{spec.path}`")
    log = NativeLog(on_log)
    _redirect_log(log)
    llama_cpp.llama_backend_init()
    for endpoint in spec.options.get("rpc_servers", ()):
        add_rpc_server(endpoint)
    parameters = parameters_here(spec)
    require_memory(parameters)
    params = model_params(parameters.spec)
    model = _load_model(parameters.spec, params, on_progress, log)
    try:
        adapters = _load_adapters(parameters.spec, model, log)
        backend = _open_context(parameters, model, params, adapters, on_progress, log)
    except BaseException:
        llama_cpp.llama_model_free(model)
        raise
    backend.make_tokenizer_beside()
    _warm_up(backend, on_progress)
    log.keeps = False
    log.lines.clear()
    return backend


def _load_model(spec: LoadSpec, params: Any, on_progress: LoadProgress, log: NativeLog) -> Any:
    def told(fraction: float, _user_data: object) -> bool:
        on_progress("weights", fraction)
        return True

    callback = llama_cpp.llama_progress_callback(told)
    params.progress_callback = callback
    model = llama_cpp.llama_model_load_from_file(os.fsencode(spec.path), params)
    if not model:
        raise ModelLoadFailed(
            f"model `{spec.model_id}` cannot be loaded: {log.reason()}", path=spec.path, log=log.errors[-8:]
        )
    return model


def _load_adapters(spec: LoadSpec, model: Any, log: NativeLog) -> list[Any]:
    """The LoRA adapters, before there is a context: its graph must have room for them. The model frees them."""
    loaded = []
    for (name, _scale), path in zip(spec.adapters, spec.adapter_paths, strict=True):
        log.errors.clear()
        adapter = llama_cpp.llama_adapter_lora_init(model, os.fsencode(path))
        if not adapter:
            raise ModelLoadFailed(
                f"the adapter `{name}` does not go with `{spec.model_id}`: {log.reason()}", param="adapters"
            )
        loaded.append(adapter)
    return loaded


def _set_adapters(context: Any, adapters: Sequence[Any], spec: LoadSpec) -> None:
    if adapters:
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
        scales = (ctypes.c_float * len(adapters))(*(scale for _name, scale in spec.adapters))
        if llama_cpp.llama_set_adapters_lora(context, handles, len(adapters), scales):
            raise ModelLoadFailed(f"llama.cpp refused the adapters of `{spec.model_id}`", param="adapters")


def _open_context(
    parameters: LoadParameters,
    model: Any,
    handed: Any,
    adapters: Sequence[Any],
    on_progress: LoadProgress,
    log: NativeLog,
) -> LlamaBackend:
    on_progress("context", 0.0)
    spec, pool = parameters.spec, int(parameters.spec.options["n_ctx_pool"])
    n_ctx, n_slots = int(parameters.values["n_ctx"]), int(parameters.values["n_slots"])
    vocab = llama_cpp.llama_model_get_vocab(model)
    recurrent = bool(llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))
    n_swa = llama_cpp.llama_model_n_swa(model)
    # what lies behind a sliding window is written over, and an older prefix would need it
    shares = not recurrent and n_swa == 0
    # beyond the slots, sequences hold prefixes
    n_sequences = min(MAX_SEQUENCES, n_slots + 56 if shares else n_slots)
    n_batch = min(int(parameters.values["n_batch"]), pool)
    params = context_params(spec, n_ctx=pool, n_sequences=n_sequences, n_batch=n_batch)
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise OutOfMemory(
            f"model `{spec.model_id}` cannot get a context of {pool} tokens: {log.reason()}",
            hint="a smaller `--n-ctx` needs less memory",
            n_ctx=n_ctx,
        )
    _set_adapters(context, adapters, spec)
    on_progress("context", 1.0)
    gpus = [device for device in parameters.estimate.devices if device.type != "cpu"]
    applied = {
        "profile": parameters.values["profile"],
        "n_ctx": n_ctx,
        "n_slots": n_slots,
        "gpu_layers": _offloaded(log),
        "adapters": spec.adapters if adapters else (),
        **applied_parameters(handed, params, context, len(gpus), log.lines),
    }
    on_cpu = applied["gpu_layers"] == 0
    info = BackendInfo(
        name="llama",
        model_id=spec.model_id,
        n_ctx=n_ctx,
        n_ctx_pool=applied["n_ctx_pool"],
        n_slots=n_slots,
        n_sequences=n_sequences,
        n_batch=applied["n_batch"],
        n_outputs=min(MAX_OUTPUTS, applied["n_batch"]),
        shares_prefixes=shares,
        rewinds=shares,
        # on the CPU attention passes every cell of the pool, whoever's it is
        idle_cells=CPU_IDLE_CELLS if on_cpu else None,
        parked_cells=pool // 8 if on_cpu and shares else 0,
        speculation=bool(spec.options.get("speculation", True)),
        **_vocabulary(vocab),
        metadata=_metadata(model),
        applied=applied,
        origins={name: parameters.origins[name] for name in applied},
        warnings=(
            *parameters.warnings,
            *left_on_cpu(min(spec.gpu_layers, llama_cpp.llama_model_n_layer(model) + 1), applied["gpu_layers"]),
            *what_failed(log.lines),
            *_whole_prompts(recurrent=recurrent, n_swa=n_swa),
        ),
        memory=_memory_of(log) | _estimated(parameters, log) | {"model_bytes": llama_cpp.llama_model_size(model)},
    )
    backend = LlamaBackend(info, model, context, vocab)
    backend._spec, backend._adapters = spec, adapters
    return backend


def _vocabulary(vocab: Any) -> dict[str, Any]:
    """What a backend tells of its vocabulary."""
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    bos, eos = llama_cpp.llama_vocab_bos(vocab), llama_cpp.llama_vocab_eos(vocab)
    return {
        "n_vocab": n_vocab,
        "end_tokens": tuple(token for token in range(n_vocab) if llama_cpp.llama_vocab_is_eog(vocab, token)),
        "add_bos": bool(llama_cpp.llama_vocab_get_add_bos(vocab)),
        "bos_token": bos if bos >= 0 else None,
        "eos_token": eos if eos >= 0 else None,
        "bos_text": _token_text(vocab, bos, special=True).decode("utf-8", "replace") if bos >= 0 else "",
        "eos_text": _token_text(vocab, eos, special=True).decode("utf-8", "replace") if eos >= 0 else "",
        "control_texts": _control_texts(vocab),
    }


def _whole_prompts(*, recurrent: bool, n_swa: int) -> tuple[str, ...]:
    """What people should know of a model whose memory cannot be shared: it is slower at conversations."""
    if not recurrent and not n_swa:
        return ()
    why = "its memory is a state" if recurrent else f"its attention slides over {n_swa} tokens"
    return (f"each prompt is computed whole, and no answer is guessed ahead: {why}, which is never used again in part",)


def _estimated(parameters: LoadParameters, log: NativeLog) -> dict[str, Any]:
    """What was estimated before the load, and how far llama.cpp's buffers are from it.

    Weights that the CPU maps from the file are left out on both sides, and told apart: their buffer is a stretch of the
    file.
    """
    mapped = parameters.spec.mmap
    held = _memory_of(log)
    mapped_bytes = sum(
        size for device, size in held.get("model_buffers", {}).items() if mapped and device.startswith("CPU")
    )
    measured = sum(sum(sizes.values()) for sizes in held.values()) - mapped_bytes
    estimated = sum(
        device.needed_bytes - (device.weights_bytes if mapped and device.type == "cpu" else 0)
        for device in parameters.estimate.devices
    )
    error = round(estimated / measured - 1, 4) if measured else 0.0
    return {
        "estimate": parameters.estimate.as_dict(),
        "alternatives": [each.as_dict() for each in parameters.alternatives],
        "estimated_bytes": estimated,
        "measured_bytes": measured,
        "mapped_bytes": mapped_bytes,
        "estimate_error": error,
    }


def _offloaded(log: NativeLog) -> int:
    if all(device.startswith("CPU") for device in _memory_of(log).get("model_buffers", {})):
        return 0  # llama.cpp says "offloaded" of layers that only could be, had it found a device
    for line in reversed(log.lines):
        if "offloaded " in line and " layers to GPU" in line:
            return int(line.split("offloaded ", 1)[1].split("/", 1)[0])
    return 0


def _memory_of(log: NativeLog) -> dict[str, Any]:
    """Buffer sizes by kind and device, as llama.cpp told them while loading (its log is their only source)."""
    out: dict[str, Any] = {}
    for line in log.lines:
        for kind in ("model", "KV", "compute", "output", "RS", "LoRA"):
            marker = f" {kind} buffer size ="
            if marker in line and line.rstrip().endswith("MiB"):
                head, size = line.split(marker, 1)
                device = head.split(":", 1)[-1].strip()
                name = f"{kind.lower()}_buffers"
                held = out.setdefault(name, {})
                held[device] = held.get(device, 0) + int(float(size.strip().removesuffix("MiB")) * 2**20)
    return out


def _warm_up(backend: LlamaBackend, on_progress: LoadProgress) -> None:
    """Touch every weight once, and measure steps of a few sizes, so that the first request does not pay for it."""
    on_progress("warmup", 0.0)
    token = backend.info.bos_token or backend.info.eos_token or 0
    llama_cpp.llama_set_warmup(backend.context, True)
    _time_decode(backend, token, 1)
    llama_cpp.llama_set_warmup(backend.context, False)
    spent = 0.0
    for rows in WARMUP_ROWS:
        if spent < WARMUP_S and rows <= backend.info.n_outputs:
            backend.info.step_seconds[rows] = seconds = _time_decode(backend, token, rows)
            spent += seconds
            on_progress("warmup", min(spent / WARMUP_S, 0.99))
    llama_cpp.llama_memory_clear(backend._memory, True)
    on_progress("warmup", 1.0)


def _time_decode(backend: LlamaBackend, token: int, rows: int) -> float:
    batch = Batch()
    batch.extend([token] * rows, 0, 0, rows)
    start = time.perf_counter()
    backend.decode(batch)
    seconds = time.perf_counter() - start
    llama_cpp.llama_memory_seq_rm(backend._memory, 0, -1, -1)
    return seconds
