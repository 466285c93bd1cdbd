from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields
from fixtures.gguf_bytes import TensorSpec, gguf
from fixtures.tiny_models import write_llama, write_mamba
from localllm.errors import BadInput, ModelLoadFailed, OutOfMemory
from localllm.runtime.models.devices import Device
from localllm.runtime.models.gguf import GGUFHeader, read_header
from localllm.runtime.models.machine import CpuLimits
from localllm.runtime.models.parameters import LoadParameters, load_parameters, require_memory
from localllm.runtime.models.placement import parameters_here
from localllm.runtime.models.profiles import profile_named, profiles
from localllm.runtime.types import LoadSpec

MIB = 1 << 20
CPU = CpuLimits(allowed=16, cores=8, quota=6.0)


def devices(cpu_mib: int, *gpus_mib: int) -> list[Device]:
    """A CPU and GPUs with so much memory free."""
    return [
        Device(
            name=name,
            description="",
            type="gpu" if name != "CPU" else "cpu",
            free_bytes=mib * MIB,
            total_bytes=mib * MIB,
        )
        for name, mib in [("CPU", cpu_mib), *((f"GPU{index}", mib) for index, mib in enumerate(gpus_mib))]
    ]


@pytest.fixture
def header(tmp_path: Path) -> GGUFHeader:
    """A model of 16 layers whose cache takes 64 KiB a token, made for 32768 tokens."""
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 16,
        "llama.context_length": 32768,
        "llama.embedding_length": 2048,
        "llama.feed_forward_length": 4096,
        "llama.attention.head_count": 16,
        "llama.attention.head_count_kv": 8,
        "llama.vocab_size": 32000,
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(keys, [TensorSpec(name=f"blk.{layer}.attn_q.weight") for layer in range(16)]))
    return read_header(path)


def resolve(header: GGUFHeader, where: list[Device] | None = None, **asked: Any) -> LoadParameters:
    """Parameters for a load on a roomy machine without a GPU, unless said otherwise."""
    return load_parameters(LoadSpec(model_id="m", path="m.gguf", **asked), [header], where or devices(64_000), CPU)


def test_what_nobody_asked_for_is_a_default_the_machines_or_the_files(header: GGUFHeader) -> None:
    found = resolve(header)

    assert {name: value for name, value in found.values.items() if value is not None} == {
        "profile": "auto",
        "n_slots": 8,
        "n_batch": 512,
        "n_ubatch": 512,
        "n_threads": 6,
        "n_threads_batch": 6,
        "cache_type_k": "f16",
        "cache_type_v": "f16",
        "flash_attention": "auto",
        "adapters": (),
        "mmap": True,
        "mlock": False,
        "gpu_layers": 0,
        "split_mode": "layer",
        "tensor_split": (),
        "main_gpu": 0,
        "kv_offload": True,
        "n_ctx": 8192,
        "n_ctx_pool": 8192,
    }
    assert found.fates == {}
    assert found.origins["rope_freq_base"] == "GGUF"
    assert found.origins["n_threads"] == "machine"
    assert found.origins["n_ctx"] == "default"
    assert found.fits
    assert found.warnings == ()


def test_a_flag_beats_the_profile_and_the_profile_beats_the_default(header: GGUFHeader) -> None:
    found = resolve(header, profile="turbo4b", n_batch=256)

    assert (found.values["n_ctx"], found.origins["n_ctx"]) == (4096, "profile turbo4b")
    assert (found.values["n_ubatch"], found.origins["n_ubatch"]) == (128, "profile turbo4b")
    assert (found.values["n_batch"], found.origins["n_batch"]) == (256, "flag")
    assert found.origins["n_slots"] == "default"


def test_the_callers_list_of_given_names_decides_what_is_a_flag(header: GGUFHeader) -> None:
    spec = LoadSpec(model_id="m", path="m.gguf", profile="long", cache_type_k="f16")
    found = load_parameters(spec, [header], devices(64_000), CPU, given={"cache_type_k"})

    assert (found.values["cache_type_k"], found.origins["cache_type_k"]) == ("f16", "flag")
    assert (found.values["cache_type_v"], found.origins["cache_type_v"]) == ("q8_0", "profile long")


def test_a_context_beyond_the_models_own_is_lowered_unless_asked_for(header: GGUFHeader) -> None:
    short = evolve(header, metadata={**header.metadata, "llama.context_length": 2048})

    assert (resolve(short).values["n_ctx"], resolve(short).origins["n_ctx"]) == (2048, "GGUF")
    assert resolve(short, profile="turbo4b").values["n_ctx"] == 2048
    asked = resolve(short, n_ctx=4096)
    assert (asked.values["n_ctx"], asked.origins["n_ctx"]) == (4096, "flag")
    assert "made for 2048 tokens" in asked.warnings[0]


def test_a_default_context_is_lowered_to_what_fits_and_said_so(header: GGUFHeader) -> None:
    found = resolve(header, devices(500))

    assert (found.values["n_ctx"], found.origins["n_ctx"]) == (4096, "fit")
    assert "lowered from 8192 to 4096" in found.warnings[0]
    assert found.fits


def test_a_context_that_was_asked_for_stays_and_alternatives_are_offered(header: GGUFHeader) -> None:
    found = resolve(header, devices(500), n_ctx=8192)

    assert (found.values["n_ctx"], found.fits) == (8192, False)
    assert {"cache_type_k": "q8_0", "cache_type_v": "q8_0"} in [each.changes for each in found.alternatives]
    assert {"n_ctx": 4096} in [each.changes for each in found.alternatives]
    with pytest.raises(OutOfMemory) as caught:
        require_memory(found)
    assert "would fit" in str(caught.value.hint)


def test_an_absurd_context_is_refused_at_once(header: GGUFHeader) -> None:
    with pytest.raises(OutOfMemory, match="GiB of memory on CPU"):
        require_memory(resolve(header, n_ctx=2**31 - 1))


def test_weights_beyond_the_memory_are_mapped_and_that_is_said(header: GGUFHeader) -> None:
    name, shape, kind, offset, _size = header.raw_tensors[0]
    huge = evolve(header, raw_tensors=((name, shape, kind, offset, 900 * MIB),))
    found = resolve(huge, devices(800))

    require_memory(found)
    assert not found.fits
    assert any("over and over" in warning for warning in found.warnings)
    with pytest.raises(OutOfMemory):
        require_memory(resolve(huge, devices(800), mlock=True))


def test_gpu_layers_without_a_gpu_are_a_warning_and_not_silent(header: GGUFHeader) -> None:
    assert resolve(header, gpu_layers=999).warnings == (
        "there is no GPU that llama.cpp can use: all layers run on the CPU",
    )
    assert resolve(header, gpu_layers="all").values["gpu_layers"] == 0
    assert resolve(header, gpu_layers=0).warnings == ()
    assert resolve(header).warnings == ()


def test_auto_fills_the_gpu_and_says_what_stays_on_the_cpu(header: GGUFHeader) -> None:
    roomy, tight = resolve(header, devices(8000, 8000)), resolve(header, devices(8000, 400))

    assert (roomy.values["gpu_layers"], roomy.origins["gpu_layers"], roomy.warnings) == (17, "fit", ())
    assert 0 < tight.values["gpu_layers"] < 17
    assert "layers fit the GPU" in tight.warnings[0]
    assert tight.fits


def test_all_and_large_numbers_mean_every_layer(header: GGUFHeader) -> None:
    both = devices(8000, 8000)

    assert resolve(header, both, gpu_layers="all").values["gpu_layers"] == 17
    assert resolve(header, both, gpu_layers=999).values["gpu_layers"] == 17
    assert resolve(header, both, gpu_layers=3).values["gpu_layers"] == 3
    assert resolve(header, both, profile="cpu").values["gpu_layers"] == 0


def test_a_micro_batch_is_no_larger_than_the_batch(header: GGUFHeader) -> None:
    found = resolve(header, n_batch=64, n_ubatch=512)

    assert (found.values["n_ubatch"], found.origins["n_ubatch"]) == (64, "fit")


def test_a_cache_type_that_does_not_divide_the_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cache_type_k"):
        resolve(read_header(write_llama(tmp_path / "m.gguf")), cache_type_k="q8_0")


def test_a_recurrent_model_has_a_state_for_each_slot_and_no_cells(tmp_path: Path) -> None:
    header = read_header(write_mamba(tmp_path / "m.gguf"))
    one, many = resolve(header, n_slots=1, n_ctx=128), resolve(header, n_slots=4, n_ctx=512)

    assert many.estimate.devices[0].kv_bytes == 4 * one.estimate.devices[0].kv_bytes


def test_the_resolved_spec_resolves_to_itself(header: GGUFHeader) -> None:
    first = resolve(header, devices(8000, 400))
    second = load_parameters(first.spec, [header], devices(8000, 400), CPU)

    assert second.values == first.values


def test_every_profile_sets_only_what_a_load_takes(header: GGUFHeader) -> None:
    known = {field.name for field in fields(LoadSpec)}
    for profile in profiles().values():
        assert set(profile.values) <= known
        assert profile.description
        resolve(header, profile=profile.name)


def test_turbo4b_is_what_it_always_was() -> None:
    assert profile_named("turbo4b").values == {"n_ctx": 4096, "n_batch": 512, "n_ubatch": 128}
    assert profile_named(None).values == {}


def test_an_unknown_profile_names_the_nearest_or_all() -> None:
    with pytest.raises(BadInput) as near:
        profile_named("turbo")
    with pytest.raises(BadInput) as far:
        profile_named("zzz")

    assert near.value.hint == "did you mean `turbo4b`?"
    assert "`auto`" in str(far.value.hint)


def test_the_pull_table_and_the_profiles_are_packaged() -> None:
    for name in ("known.json", "profiles.json"):
        assert json.loads(resources.files("localllm.runtime.models").joinpath(name).read_text())


def test_parameters_for_this_machine_are_the_same_from_outside_and_inside_a_worker(model_path: Path) -> None:
    spec = LoadSpec(model_id="m", path=str(model_path))
    outside, inside = parameters_here(spec, probe=True), parameters_here(spec)

    assert outside.values == inside.values
    assert outside.as_dict()["memory"]["devices"][0]["weights_bytes"] == 96_576_768


def test_a_split_sets_parts_are_all_counted(tmp_path: Path) -> None:
    for number in (1, 2):
        part = gguf({"general.architecture": "llama"}, [TensorSpec(name=f"output.{number}")])
        (tmp_path / f"s-{number:05d}-of-00002.gguf").write_bytes(part)
    found = parameters_here(LoadSpec(model_id="s", path=str(tmp_path / "s-00001-of-00002.gguf")))

    assert found.estimate.devices[0].weights_bytes == 256


def test_a_damaged_file_is_named_by_its_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf({"general.architecture": "llama"})[:-1])
    with pytest.raises(ModelLoadFailed, match="`nice` is truncated: the last tensor"):
        parameters_here(LoadSpec(model_id="nice", path=str(tmp_path / "m.gguf")))
