from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from fixtures.gguf_bytes import ARRAY, I32, STRING, U64, TensorSpec, Typed, gguf, model, split_part, with_vocabulary
from localllm.errors import ModelLoadFailed
from localllm.runtime.models.ggml_types import TYPES
from localllm.runtime.models.gguf import InvalidGGUF, LargeArray, header_hash, read_header, token_texts


def reason(path: Path, content: bytes) -> str:
    """Why a file is refused; the same on both ways of reading."""
    path.write_bytes(content)
    reasons = set()
    for exact in (True, False):
        with pytest.raises(InvalidGGUF) as caught:
            read_header(path, exact=exact)
        reasons.add(caught.value.reason)
    assert len(reasons) == 1
    return reasons.pop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def test_the_facts_of_a_model_come_from_its_metadata(path: Path) -> None:
    keys = {"llama.block_count": 4, "llama.embedding_length": 64, "general.name": "Tiny", "general.file_type": 15}
    path.write_bytes(gguf({"general.architecture": "llama", "llama.context_length": 2048, **keys}))
    header = read_header(path)

    assert (header.architecture, header.name, header.kind) == ("llama", "Tiny", "model")
    assert (header.context_length, header.n_layers, header.n_embd) == (2048, 4, 64)
    assert header.quantization == "Q4_K_M"
    assert (header.tensor_count, header.parameter_count, header.tensor_bytes) == (1, 32, 128)
    assert (header.tensors[0].name, header.tensors[0].type, header.tensors[0].n_elements) == (
        "token_embd.weight",
        "f32",
        32,
    )


def test_the_real_model_reads_the_same_whether_walked_or_jumped(model_path: Path) -> None:
    walked, jumped = read_header(model_path), read_header(model_path, exact=False)

    assert walked == jumped
    assert (walked.vocabulary_size, walked.parameter_count, walked.quantization) == (49152, 134515008, "Q4_1")
    assert walked.data_offset + walked.tensors[-1].offset + walked.tensors[-1].n_bytes == model_path.stat().st_size
    assert token_texts(model_path, walked, (0, 1, 2, 49152, -1)) == {
        0: "<|endoftext|>",
        1: "<|im_start|>",
        2: "<|im_end|>",
    }


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_is_read(path: Path, version: int) -> None:
    path.write_bytes(gguf({"general.architecture": "llama", "llama.context_length": 9}, version=version))
    header = read_header(path)

    assert (header.version, header.context_length) == (version, 9)


def test_a_big_endian_file_is_named_as_such(path: Path) -> None:
    assert "big-endian" in reason(path, gguf({"general.architecture": "llama"}, order=">"))


@pytest.mark.parametrize(
    ("counts", "message"),
    [({"n_tensors": 2**63}, "tensors"), ({"n_keys": 2**63}, "keys"), ({"n_keys": 10_000, "n_tensors": 0}, "keys")],
)
def test_a_tiny_file_with_huge_counts_costs_neither_time_nor_memory(
    path: Path, counts: dict[str, int], message: str
) -> None:
    content = gguf(tensors=(), **counts)
    assert len(content) == 24
    tracemalloc.start()
    start = time.thread_time()
    said = reason(path, content)
    elapsed = time.thread_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert message in said
    assert elapsed < 2
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "value",
    [
        Typed(STRING, b""),
        Typed(ARRAY, [], STRING),
        Typed(ARRAY, [], U64),
        Typed(ARRAY, [], ARRAY),
    ],
)
def test_a_length_beyond_the_file_is_refused_before_anything_is_read(path: Path, value: Typed) -> None:
    content = gguf([("x", value)], tensors=())
    lying = content[:-8] + struct.pack("<Q", 2**62)

    assert "truncated" in reason(path, lying) or "claims a string" in reason(path, lying)


def test_deep_nesting_is_refused(path: Path) -> None:
    value = Typed(ARRAY, [1])
    for _ in range(10):
        value = Typed(ARRAY, [value], ARRAY)

    assert "nests arrays" in reason(path, gguf([("x", value)]))


def test_an_array_in_an_array_is_read(path: Path) -> None:
    path.write_bytes(gguf([("x", Typed(ARRAY, [Typed(ARRAY, [1, 2]), Typed(ARRAY, [3])], ARRAY))]))

    assert read_header(path).metadata["x"] == ((1, 2), (3,))


@pytest.mark.parametrize("cut", [0, 1, 4, 7, 23, 24])
def test_a_file_cut_within_the_preamble_is_refused(path: Path, cut: int) -> None:
    whole = model()

    assert reason(path, whole[:cut])


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.7])
def test_a_file_cut_in_the_header_is_truncated(path: Path, cut: float) -> None:
    whole = model()

    assert "truncated" in reason(path, whole[: int(len(whole) * cut)])


def test_a_file_one_byte_short_names_the_last_tensor_and_both_sizes(path: Path) -> None:
    whole = model()
    said = reason(path, whole[:-1])

    assert "token_embd.weight" in said
    assert str(len(whole)) in said
    assert str(len(whole) - 1) in said


def test_a_file_cut_within_a_large_vocabulary_is_truncated(path: Path) -> None:
    whole = with_vocabulary(5000)

    for cut in (0.1, 0.4, 0.6, 0.9):
        assert "truncated" in reason(path, whole[: int(len(whole) * cut)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"<!doctype html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04 some zip archive", "not a GGUF file"),
        (b"tjgg\x01\x00\x00\x00 an old one", "older GGML"),
        (gguf(version=4), "version 4"),
    ],
)
def test_other_files_are_named_for_what_they_are(path: Path, content: bytes, message: str) -> None:
    assert message in reason(path, content)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([TensorSpec(name="a", type=99)], "unknown"),
        ([TensorSpec(name="a", type=4)], "no longer supported"),
        ([TensorSpec(name="a", shape=(33,), type=2)], "blocks of 32"),
        ([TensorSpec(name="a"), TensorSpec(name="a")], "twice"),
        ([TensorSpec(name="a", offset=64)], "where 0 is due"),
        ([TensorSpec(name="a", shape=(1, 1, 1, 1, 1))], "5 dimensions"),
        ([TensorSpec(name="n" * 64)], "64 bytes"),
        ([TensorSpec(name="a", shape=(2**40, 2**40))], "elements"),
    ],
)
def test_a_wrong_tensor_table_is_refused(path: Path, tensors: list[TensorSpec], message: str) -> None:
    assert message in reason(path, gguf(tensors=tensors))


@pytest.mark.parametrize("alignment", [0, 3, 2**31, "32"])
def test_a_wrong_alignment_is_refused(path: Path, alignment: int | str) -> None:
    assert "alignment" in reason(path, gguf({"general.alignment": alignment}))


def test_a_key_given_twice_is_refused(path: Path) -> None:
    assert "twice" in reason(path, gguf([("a", 1), ("a", 2)]))


def test_long_arrays_are_counted_and_not_built(path: Path) -> None:
    path.write_bytes(with_vocabulary(50_000))
    for exact in (True, False):
        header = read_header(path, exact=exact)

        assert isinstance(header.metadata["tokenizer.ggml.tokens"], LargeArray)
        assert header.vocabulary_size == 50_000
        assert (header.bos_id, header.chat_template) == (1, "{{ messages }}")
    assert token_texts(path, header, (0, 49_999)) == {0: "token0", 49_999: "token49999"}


def test_a_jump_that_lands_on_a_forged_key_falls_back_to_the_walk(path: Path) -> None:
    forged = struct.pack("<Q", 14) + b"tokenizer.fake" + struct.pack("<II", 4, 7)
    tokens: list[bytes | str] = ["t"] * 4000 + [forged] + ["t" * 40] * 4000
    path.write_bytes(
        gguf(
            [
                ("general.architecture", "llama"),
                ("tokenizer.ggml.tokens", Typed(ARRAY, tokens, STRING)),
                ("tokenizer.ggml.bos_token_id", 5),
            ]
        )
    )
    header = read_header(path, exact=False)

    assert header == read_header(path)
    assert (header.bos_id, "tokenizer.fake" in header.metadata) == (5, False)


def test_a_vocabulary_of_hostile_size_ends_soon(path: Path) -> None:
    """Ten million empty strings: the file really has them, but no tokenizer does."""
    head = gguf([("tokenizer.ggml.tokens", Typed(ARRAY, [], STRING))], tensors=())
    with path.open("wb") as file:
        file.write(head[:-8] + struct.pack("<Q", 10_000_000))
        file.truncate(100_000_000)
    start = time.thread_time()
    with pytest.raises(InvalidGGUF, match="4000000"):
        read_header(path)

    assert time.thread_time() - start < 2


@pytest.mark.parametrize(
    ("metadata", "tensors", "kind"),
    [
        ({"general.architecture": "llama"}, 1, "model"),
        ({"general.architecture": "clip"}, 1, "projector"),
        ({"general.architecture": "llama", "general.type": "mmproj"}, 1, "projector"),
        ({"general.architecture": "llama", "general.type": "adapter"}, 1, "adapter"),
        ({"general.architecture": "llama", "adapter.type": "lora"}, 1, "adapter"),
        ({"general.architecture": "controlvector"}, 1, "adapter"),
        ({"general.architecture": "llama"}, 0, "vocabulary"),
        ({"general.architecture": "llama", "split.count": 3, "split.no": 0}, 0, "model"),
    ],
)
def test_the_kind_is_decided_by_metadata(path: Path, metadata: dict[str, object], tensors: int, kind: str) -> None:
    path.write_bytes(gguf(metadata, [TensorSpec(name="a")] * tensors))

    assert read_header(path).kind == kind


def test_split_facts_count_from_zero(path: Path) -> None:
    path.write_bytes(split_part(2, 3))
    split = read_header(path).split

    assert split is not None
    assert (split.number, split.count, split.tensors) == (1, 3, 3)


def test_named_chat_templates_are_found(path: Path) -> None:
    keys = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    path.write_bytes(gguf(keys))

    assert read_header(path).chat_templates == {"default": "plain", "tool_use": "tools"}


def test_a_per_layer_value_may_be_one_number_or_many(path: Path) -> None:
    keys = {"general.architecture": "x", "x.block_count": 3, "x.a": 7, "x.b": [1, 2, 3]}
    path.write_bytes(gguf(keys))
    header = read_header(path)

    assert header.per_layer("a", 0) == (7, 7, 7)
    assert header.per_layer("b", 0) == (1, 2, 3)
    assert header.per_layer("c", 5) == (5, 5, 5)


def test_text_that_is_not_utf8_is_escaped(path: Path) -> None:
    path.write_bytes(gguf([("general.name", Typed(STRING, b"caf\xe9"))]))

    assert read_header(path).name == "caf\\xe9"


def test_a_refusal_is_a_failed_load_for_callers(path: Path) -> None:
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelLoadFailed):
        read_header(path)


def test_a_missing_file_and_a_folder_and_a_pipe_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("gone.gguf", ".", "pipe.gguf"):
        with pytest.raises(InvalidGGUF):
            read_header(tmp_path / name)


def test_the_header_hash_changes_with_the_header_and_not_with_the_weights(path: Path) -> None:
    whole = model(general__name="a")
    path.write_bytes(whole)
    first = header_hash(path)
    path.write_bytes(whole[:-1] + b"\x01")
    assert header_hash(path) == first
    path.write_bytes(model(general__name="b"))

    assert header_hash(path) != first


def test_block_sizes_agree_with_the_ggml_that_is_installed() -> None:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "lib"
    suffix = "*.dylib" if os.uname().sysname == "Darwin" else "*.so"
    base = ctypes.CDLL(str(min(folder.glob(f"libggml-base{suffix}"))))
    base.ggml_type_name.restype = ctypes.c_char_p
    base.ggml_blck_size.restype = ctypes.c_int64
    base.ggml_type_size.restype = ctypes.c_size_t
    for number, (name, block, size) in TYPES.items():
        found = (base.ggml_type_name(number).decode(), base.ggml_blck_size(number), base.ggml_type_size(number))
        assert found == (name, block, size)


def test_i32_arrays_keep_their_sign(path: Path) -> None:
    path.write_bytes(gguf([("x", Typed(ARRAY, [-1, 2], I32))]))

    assert read_header(path).metadata["x"] == (-1, 2)
