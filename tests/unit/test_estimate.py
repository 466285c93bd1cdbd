from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from fixtures.buffers import real_buffers
from fixtures.gguf_bytes import TensorSpec, gguf, model
from fixtures.tiny_models import write_gemma, write_hybrid, write_llama, write_mamba
from localllm.runtime.models.devices import Device
from localllm.runtime.models.estimate import DeviceMemory, Sizing, estimate, place
from localllm.runtime.models.fit import alternatives, auto_layers, context_that_fits, pool_cells
from localllm.runtime.models.gguf import read_header
from localllm.runtime.models.shape import ModelShape, model_shape

MIB = 1 << 20


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


@pytest.fixture(scope="session")
def shape(model_path: Path) -> ModelShape:
    return model_shape([read_header(model_path)])


def compare(path: Path, sizing: Sizing, real: dict[str, dict[str, float]], places: list[Device]) -> None:
    """Weights and cache exactly, compute within a tenth or two MiB."""
    told = estimate(model_shape([read_header(path)]), sizing, places)
    for device in told.devices:
        found = real.get(device.name, {})
        assert device.weights_bytes / MIB == pytest.approx(found.get("model", 0), abs=0.02)
        assert device.kv_bytes / MIB == pytest.approx(found.get("KV", 0), abs=0.02)
        assert device.compute_bytes / MIB == pytest.approx(found.get("compute", 0), rel=0.1, abs=2)
        assert device.output_bytes / MIB == pytest.approx(found.get("output", 0), abs=0.02)


@pytest.mark.parametrize(
    ("n_ctx", "n_ubatch", "flash_attention", "cache_type"),
    [(8192, 512, True, "f16"), (2048, 128, False, "f16"), (4096, 64, True, "q8_0")],
)
def test_the_estimate_of_the_real_model_agrees_with_llama_cpps_buffers(
    model_path: Path, n_ctx: int, n_ubatch: int, flash_attention: bool, cache_type: str
) -> None:
    real = real_buffers(
        str(model_path), n_ctx=n_ctx, n_ubatch=n_ubatch, flash_attention=flash_attention, cache_type=cache_type
    )
    sizing = Sizing(
        n_ctx_pool=n_ctx,
        n_ubatch=n_ubatch,
        flash_attention=flash_attention,
        cache_type_k=cache_type,
        cache_type_v=cache_type,
    )

    compare(model_path, sizing, real, devices(16_000))


@pytest.mark.parametrize("full_window", [True, False])
@pytest.mark.parametrize("write", [write_llama, write_mamba, write_hybrid, write_gemma])
def test_the_estimate_agrees_for_other_architectures(tmp_path: Path, write: object, full_window: bool) -> None:
    path = tmp_path / "m.gguf"
    write(path)  # type: ignore[operator]
    real = real_buffers(str(path), n_ctx=2048, n_ubatch=128, n_sequences=8, full_window=full_window)
    real["CPU"].pop("output")  # grows to the estimate's size with the first large batch
    sizing = Sizing(n_ctx_pool=2048, n_ubatch=128, n_sequences=8, full_window=full_window, n_outputs=0)

    compare(path, sizing, real, devices(16_000))


@pytest.mark.parametrize("write", [write_llama, write_mamba, write_hybrid, write_gemma])
def test_the_strict_lane_is_counted_as_a_context_of_one_sequence(tmp_path: Path, write: object) -> None:
    path = tmp_path / "m.gguf"
    write(path)  # type: ignore[operator]
    real = real_buffers(str(path), n_ctx=4096, n_ubatch=128, n_sequences=1, full_window=False)["CPU"]
    sizing = Sizing(n_ctx_pool=4096, n_ubatch=128, n_sequences=8)
    told = estimate(model_shape([read_header(path)]), sizing, devices(16_000)).lane_bytes

    assert told / MIB == pytest.approx(real["KV"] + real["compute"], rel=0.1, abs=2)


def test_layers_are_counted_from_the_output_down() -> None:
    gpu = devices(0, 1000)[1:]

    assert place(4, 0, gpu) == (-1, -1, -1, -1, -1)
    assert place(4, 1, gpu) == (-1, -1, -1, -1, 0)
    assert place(4, 3, gpu) == (-1, -1, 0, 0, 0)
    assert place(4, 99, gpu) == (0, 0, 0, 0, 0)
    assert place(4, 99, []) == (-1, -1, -1, -1, -1)


def test_several_gpus_share_layers_by_their_free_memory() -> None:
    assert place(7, 8, devices(0, 100, 300)[1:]) == (0, 0, 1, 1, 1, 1, 1, 1)


def test_tied_embeddings_are_held_twice_once_the_output_leaves_the_cpu(shape: ModelShape) -> None:
    both = devices(1000, 1000)
    on_cpu = estimate(shape, Sizing(n_ctx_pool=512), both)
    split = estimate(shape, Sizing(n_ctx_pool=512, gpu_layers=1), both)

    assert shape.tied_embeddings
    assert on_cpu.devices[1].needed_bytes == 0
    assert split.devices[1].weights_bytes == shape.input_bytes + shape.output_bytes
    assert split.devices[0].weights_bytes == shape.weight_bytes - shape.output_bytes


def test_a_device_without_work_fits_even_when_full() -> None:
    assert DeviceMemory(name="GPU0", type="gpu", free_bytes=0).fits
    assert not DeviceMemory(name="GPU0", type="gpu", free_bytes=100, weights_bytes=1).fits


@pytest.mark.parametrize("free_mib", [60, 100, 150, 220, 300, 400, 1000])
def test_auto_places_as_many_layers_as_fit_and_not_one_more(shape: ModelShape, free_mib: int) -> None:
    sizing = Sizing(n_ctx_pool=8192)
    both = devices(16_000, free_mib)
    layers = auto_layers(shape, sizing, both)

    assert all(device.fits for device in estimate(shape, evolve(sizing, gpu_layers=layers), both).devices)
    if layers <= shape.n_layers:
        assert not estimate(shape, evolve(sizing, gpu_layers=layers + 1), both).fits
    assert auto_layers(shape, sizing, devices(16_000)) == 0


def test_auto_puts_a_small_model_wholly_on_a_large_gpu(shape: ModelShape) -> None:
    assert auto_layers(shape, Sizing(n_ctx_pool=8192), devices(16_000, 8000)) == 31


def test_the_context_is_halved_until_it_fits(shape: ModelShape) -> None:
    plenty = context_that_fits(shape, Sizing(n_ctx_pool=0), devices(8000), 8192, 8, auto=False)
    little = context_that_fits(shape, Sizing(n_ctx_pool=0), devices(250), 8192, 8, auto=False)

    assert plenty is not None
    assert (plenty[0], plenty[1].n_ctx_pool) == (8192, 8192)
    assert little is not None
    assert (little[0], little[1].n_ctx_pool) == (2048, 2048)
    assert context_that_fits(shape, Sizing(n_ctx_pool=0), devices(20), 8192, 8, auto=False) is None


def test_the_pool_gives_each_slot_an_average_request() -> None:
    assert pool_cells(8192, 8) == 8192
    assert pool_cells(2048, 8) == 8192
    assert pool_cells(256, 4) == 1024
    assert pool_cells(8192, 1) == 8192


def test_alternatives_fit_and_say_what_changes(shape: ModelShape) -> None:
    small = devices(300)
    offered = alternatives(shape, Sizing(n_ctx_pool=8192), small, 8192, 8)

    assert {tuple(sorted(each.changes)) for each in offered} >= {("cache_type_k", "cache_type_v"), ("n_ctx",)}
    for each in offered:
        caches = {name: value for name, value in each.changes.items() if name != "n_ctx"}
        pool = each.changes.get("n_ctx", 8192)
        assert estimate(shape, Sizing(n_ctx_pool=pool, **caches), small).fits


def test_fewer_layers_on_the_gpu_are_an_alternative(shape: ModelShape) -> None:
    offered = alternatives(shape, Sizing(n_ctx_pool=8192, gpu_layers=31), devices(8000, 200), 8192, 8)

    assert 0 < offered[0].changes["gpu_layers"] < 31


def test_a_cache_type_whose_blocks_do_not_divide_a_head_is_not_offered(tmp_path: Path) -> None:
    tiny = model_shape([read_header(write_llama(tmp_path / "m.gguf"))])

    assert not tiny.takes_cache_type("q8_0")
    assert tiny.takes_cache_type("f16")


def test_a_split_set_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "llama.block_count": 2}
    for number in range(2):
        (tmp_path / f"{number}").write_bytes(gguf(keys, [TensorSpec(name=f"blk.{number}.attn_q.weight")]))
    whole = model_shape([read_header(tmp_path / "0"), read_header(tmp_path / "1")])

    assert whole.layer_bytes == (128, 128)


def test_a_header_without_numbers_still_gets_an_estimate(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(model())
    bare = model_shape([read_header(tmp_path / "m")])

    assert estimate(bare, Sizing(n_ctx_pool=2**31 - 1), devices(1000)).needed_bytes > 0
