"""The engine on the real model: what equality can be promised, sharing, guessing, sampling, constraints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from attrs import evolve
from fixtures.asking import Asking, Told, chat
from fixtures.tiny_models import write_gemma, write_mamba
from localllm.errors import BadInput, Interrupted, ModelLoadFailed, OutOfMemory
from localllm.runtime.backend import Backend, Batch, open_backend
from localllm.runtime.engine.cost import CostModel
from localllm.runtime.engine.engine import Engine
from localllm.runtime.types import Constraint, LoadSpec, Sampling

pytestmark = pytest.mark.model

ANIMALS = ("cat", "horse", "whale", "spider", "goose", "fox", "beetle", "camel")
QUESTIONS = [f"Tell a long story about a {animal}." for animal in ANIMALS]
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def spec(model_path: Path) -> LoadSpec:
    return LoadSpec(model_id="m", path=str(model_path), n_ctx=2048, n_threads=1)


@pytest.fixture(scope="module")
def backend(spec: LoadSpec) -> Iterator[Backend]:
    loaded = open_backend(spec)
    yield loaded
    loaded.close()


@pytest.fixture
def asking(backend: Backend) -> Iterator[Asking]:
    empty(backend)
    engine = Engine(backend)
    yield Asking(backend, engine)
    engine.close()


def empty(backend: Backend) -> None:
    """Forget what an earlier engine left in the cells."""
    for seq_id in range(backend.info.n_sequences):
        backend.remove(seq_id, 0)


def cost_where_rows_are_free() -> CostModel:
    return CostModel.of({1: 0.001, 64: 0.00101})


def rescored(backend: Backend, prompt: list[int], answer: list[int]) -> tuple[list[float], list[float]]:
    """For each token of an answer, computed step by step and alone: how far below the best, and its log-probability."""
    lane = backend.open_lane()
    gaps, logprobs = [], []
    batch, position = Batch(), len(prompt)
    batch.extend(prompt, 0, 0, 1)
    for token in answer:
        lane.decode(batch)
        logits = lane.logits(len(batch) - 1).astype(np.float64)
        gaps.append(float(logits.max() - logits[token]))
        logprobs.append(float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
        batch = Batch()
        batch.extend([token], position, 0, 1)
        position += 1
    lane.close()
    return gaps, logprobs


def answer_tokens(engine: Engine, kept: dict[str, list[int]]) -> None:
    """Note each sequence's answer as it ends."""
    drop = engine._drop

    def noting(answer: Any) -> None:
        kept[answer.sequence.request_id] = answer.sequence.tokens[answer.sequence.n_prompt :]
        drop(answer)

    engine._drop = noting  # type: ignore[method-assign]


def test_every_greedy_token_of_a_busy_server_is_nearly_the_best_one_alone(asking: Asking) -> None:
    kept: dict[str, list[int]] = {}
    answer_tokens(asking.engine, kept)
    assert asking.engine.scheduler.speculator is not None
    asking.engine.scheduler.speculator.cost = cost_where_rows_are_free()
    tolds = {}
    for _ in range(2):  # the second time with prefixes to share and answers to guess from
        for question in QUESTIONS:
            told = asking.submit(chat(question), max_tokens=40, logprobs=0)
            tolds[f"r{asking.count}"] = (chat(question), told)
        asking.run()
    gaps, differences = [], []
    for request_id, (prompt, told) in tolds.items():
        alone, logprobs = rescored(asking.backend, asking.backend.tokenize(prompt), kept[request_id])
        gaps += alone
        said = [entry.logprob for piece in told.pieces for entry in piece.logprobs]
        differences += [abs(a - b) for a, b in zip(said, logprobs, strict=False)]

    assert len(gaps) >= 500
    assert max(gaps) <= 1.0
    assert sum(differences) / len(differences) <= 0.10
    assert asking.engine.metrics()["accepted_tokens_total"] > 100
    assert asking.engine.metrics()["cached_tokens_total"] > 100


def test_each_of_eight_at_once_speaks_of_its_own_marker(asking: Asking) -> None:
    markers = ["zebra", "lemon", "violin", "castle", "river", "candle", "planet", "button"]
    tolds = [asking.submit(chat(f"Repeat the word {word} three times."), max_tokens=24) for word in markers]
    asking.run()

    for word, told in zip(markers, tolds, strict=True):
        assert word in told.text.lower()
        assert not any(other in told.text.lower() for other in markers if other != word)


def test_a_burst_with_one_long_new_prefix_computes_it_once(asking: Asking) -> None:
    rules = "Every function states its inputs, outputs and errors. " * 30
    tolds = [
        asking.submit(f"<|im_start|>system\n{rules}<|im_end|>\n{chat(f'Question {i}: name one rule.')}", max_tokens=4)
        for i in range(6)
    ]
    asking.run()
    prompts = [told.done.usage.prompt_tokens for told in tolds]

    assert asking.engine.meter.rows_total < prompts[0] + 6 * 40
    assert [told.done.usage.cached_tokens > prompts[0] * 0.9 for told in tolds] == [False] + [True] * 5


def test_answers_that_were_stopped_for_want_of_cells_go_on_as_the_model_would(backend: Backend) -> None:
    empty(backend)
    engine = Engine(backend)
    engine.scheduler.limits = evolve(engine.scheduler.limits, n_cells=160)
    engine.scheduler.cells.capacity = 160
    asking = Asking(backend, engine)
    kept: dict[str, list[int]] = {}
    answer_tokens(engine, kept)
    prompts = [backend.tokenize(chat(question)) for question in QUESTIONS[:4]]
    tolds = [asking.submit(prompt, max_tokens=40) for prompt in prompts]
    asking.run()
    engine.close()

    assert engine.scheduler.preemptions > 0
    for number, (told, prompt) in enumerate(zip(tolds, prompts, strict=True), 1):
        told.check_order()
        tokens = kept[f"r{number}"]
        gaps, _logprobs = rescored(backend, prompt, tokens)
        assert told.done.usage.completion_tokens == len(tokens)
        assert max(gaps) <= 1.0


def test_parked_cells_come_back_as_they_were(backend: Backend) -> None:
    empty(backend)
    prompt = backend.tokenize(chat(QUESTIONS[0]))
    batch = Batch()
    batch.extend(prompt, 0, 0, 1)
    backend.decode(batch)
    before = backend.logits(len(prompt) - 1).copy()
    saved = backend.save(0)
    backend.remove(0, 0)

    assert backend.restore(saved, 1)

    backend.remove(1, len(prompt) - 1)
    again = Batch()
    again.extend(prompt[-1:], len(prompt) - 1, 1, 1)
    backend.decode(again)
    # another shape of step: rounding may differ, a wrong cell would differ by far more
    assert float(np.abs(backend.logits(0) - before).max()) < 2.0
    assert backend.logits(0).argmax() == before.argmax()


def test_cancelling_a_long_prompt_stops_it_soon_and_leaves_a_usable_cache(asking: Asking) -> None:
    import threading

    long = chat("The quick brown fox jumps over the lazy dog. " * 150)
    told = asking.submit(long, request_id="gone", max_tokens=4)
    threading.Timer(0.05, asking.engine.cancel, ("gone",)).start()
    asking.run()
    again = asking.ask(chat("Say: hello"), max_tokens=8)

    assert isinstance(told.error, Interrupted)
    assert asking.engine.meter.rows_total < 1500
    assert again.text


def test_guessing_ahead_does_not_change_what_is_drawn(backend: Backend) -> None:
    """Each draw uses its request's own random numbers, so on an empty cache the same seed gives the same words.

    That is stronger than an equal distribution; a tenth may differ, for the rounding of batches of other shapes.
    """
    prompt = chat("Tell me one short sentence about a cat.")
    engine = Engine(backend)
    speculator = engine.scheduler.speculator
    assert speculator is not None
    speculator.cost = cost_where_rows_are_free()
    empty(backend)
    Asking(backend, engine).ask(prompt, max_tokens=12)  # gives it something to guess from
    drawn: dict[bool, list[str]] = {}
    for guess in (True, False):
        drawn[guess] = []
        for seed in range(30):
            empty(backend)
            engine = Engine(backend)
            engine.scheduler.speculator = speculator if guess else None
            sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
            drawn[guess].append(Asking(backend, engine).ask(prompt, sampling=sampling, max_tokens=5).text)

    assert speculator.drafted > 20
    assert speculator.accepted > 0
    assert len(set(drawn[True])) > 15
    assert sum(a == b for a, b in zip(drawn[True], drawn[False], strict=True)) >= 27


def test_the_strict_lane_repeats_itself_whatever_runs_beside_it(asking: Asking) -> None:
    hot = Sampling(temperature=1.0, seed=7)
    prompt = chat("Invent a name for a boat.")
    alone = asking.ask(prompt, sampling=hot, max_tokens=20, determinism="strict", logprobs=1)
    others = [asking.submit(chat(question), max_tokens=30) for question in QUESTIONS[:3]]
    beside = asking.submit(prompt, sampling=hot, max_tokens=20, determinism="strict", logprobs=1)
    asking.run()
    other_seed = asking.ask(prompt, sampling=evolve(hot, seed=8), max_tokens=20, determinism="strict")

    assert [piece.logprobs for piece in beside.pieces] == [piece.logprobs for piece in alone.pieces]
    assert beside.text == alone.text
    assert other_seed.text != alone.text
    assert all(told.text for told in others)


def test_without_a_seed_answers_differ_and_greedy_ones_do_not(asking: Asking) -> None:
    hot = [asking.ask(chat("Say a random word."), sampling=Sampling(temperature=1.5), max_tokens=12) for _ in range(4)]
    greedy = [
        asking.ask(chat("Say a word."), sampling=evolve(GREEDY, seed=seed), max_tokens=8, determinism="strict")
        for seed in (1, 2**32 - 1)
    ]

    assert len({told.text for told in hot}) > 1
    assert greedy[0].text == greedy[1].text


@pytest.mark.parametrize("more", ["", " ".join(f"number {i}" for i in range(90))], ids=["short", "long"])
def test_a_seeded_answer_without_a_cache_repeats_on_an_idle_engine(asking: Asking, more: str) -> None:
    prompt, sampling = chat(f"Write a line about rain. {more}"), Sampling(temperature=1.0, seed=7)
    asking.ask(prompt, sampling=sampling, max_tokens=20)
    texts = []
    for i in range(3):
        texts.append(asking.ask(prompt, sampling=sampling, max_tokens=20, cache_prompt=False).text)
        asking.ask(chat(f"Tell me about {i} cats and dogs."), max_tokens=3 + 9 * i)

    assert len(set(texts)) == 1
    assert asking.ask(prompt, sampling=evolve(sampling, seed=8), max_tokens=20, cache_prompt=False).text != texts[0]


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": -1},
        {"top_n_sigma": 1.0},
        {"typical_p": 0.5},
        {"xtc_probability": 0.5},
        {"dynatemp_range": 0.3},
        {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repeat_last_n": -1},
        {"dry_multiplier": 0.8},
        {"mirostat": 1},
        {"mirostat": 2},
        {"samplers": ("top_k", "temperature", "min-p")},
        {"temperature": 0.0, "repeat_penalty": 1.2},
        {"temperature": 0.0, "mirostat": 2},
    ],
    ids=str,
)
def test_each_sampler_gives_an_answer(asking: Asking, change: dict[str, Any]) -> None:
    told = asking.ask(chat("What is rain?"), sampling=Sampling(**{"seed": 3, **change}), max_tokens=12)

    told.check_order()
    assert told.done.usage.completion_tokens > 1


@pytest.mark.parametrize(
    "sampling",
    [Sampling(samplers=("top_q",)), Sampling(repeat_penalty=0.0), Sampling(logit_bias=((10**6, 1.0),))],
    ids=["name", "penalty", "token"],
)
def test_a_sampler_that_cannot_be_is_refused(asking: Asking, sampling: Sampling) -> None:
    assert isinstance(asking.ask(chat("x"), sampling=sampling).error, BadInput)


def test_a_bias_bans_a_token_and_forces_another(asking: Asking) -> None:
    yes, no = asking.backend.tokenize("Yes")[0], asking.backend.tokenize("No")[0]
    forced = asking.ask(chat("x"), sampling=evolve(GREEDY, logit_bias=((yes, 1000.0), (no, -1000.0))), max_tokens=3)

    assert forced.text == "YesYesYes"


def test_a_repetition_penalty_sees_the_prompt(asking: Asking) -> None:
    prompt = chat("Repeat the word banana.")
    plain = asking.ask(prompt, max_tokens=12)
    strong = asking.ask(prompt, sampling=evolve(GREEDY, presence_penalty=50.0, repeat_last_n=-1), max_tokens=12)

    assert "banana" in plain.text.lower()
    assert "banana" not in strong.text


def test_log_probabilities_are_the_models_own(asking: Asking) -> None:
    told = asking.ask(chat("What is 1+1?"), max_tokens=5, logprobs=3)
    entries = [entry for piece in told.pieces for entry in piece.logprobs]

    assert b"".join(entry.token for entry in entries).decode() == told.text
    for entry in entries:
        assert [probability for _, probability in entry.top] == sorted((p for _, p in entry.top), reverse=True)
        assert entry.top[0] == (entry.token, entry.logprob)
        assert sum(np.exp(probability) for _, probability in entry.top) <= 1.0 + 1e-6


SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["ok", "list"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("whitespace", [False, True])
def test_hot_answers_conform_to_their_schema(asking: Asking, whitespace: bool) -> None:
    constraint = Constraint(kind="json_schema", source=SCHEMA, whitespace=whitespace)
    told = asking.submit(
        chat("say hello"), sampling=Sampling(temperature=1.5, seed=1), constraint=constraint, n=10, max_tokens=300
    )
    asking.run()
    told.check_order(n=10)
    for index in range(10):
        jsonschema.validate(json.loads(told.text_of(index)), SCHEMA)


def test_forced_tokens_cost_no_step_each(asking: Asking) -> None:
    told = asking.ask(chat("say hello"), constraint=Constraint(kind="json_schema", source=SCHEMA), max_tokens=300)

    assert asking.engine.meter.steps_total < 0.7 * told.done.usage.completion_tokens
    assert told.reason == "stop"


def test_a_constrained_answer_that_is_cut_says_so(asking: Asking) -> None:
    told = asking.ask(chat("say hello"), constraint=Constraint(kind="json_schema", source=SCHEMA), max_tokens=2)

    assert (told.reason, told.done.usage.completion_tokens) == ("length", 2)


@pytest.mark.parametrize("write", [write_mamba, write_gemma], ids=["recurrent", "sliding_window"])
def test_a_model_whose_memory_cannot_be_shared_gives_the_same_answer_twice(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / "tiny.gguf")
    loaded = open_backend(LoadSpec(model_id="tiny", path=str(path), n_ctx=256, n_slots=2, n_threads=1))
    asking = Asking(loaded, Engine(loaded))
    prompt = list(range(10, 120))
    tolds: list[Told] = [asking.ask(prompt, max_tokens=12) for _ in range(2)]
    together = [asking.submit(prompt, max_tokens=12) for _ in range(2)]
    asking.run()
    loaded.close()

    assert tolds[0].text == tolds[1].text
    assert all(told.done.usage.cached_tokens == 0 for told in [*tolds, *together])


def test_a_file_that_is_no_model_is_refused_with_llamas_reason(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(range(200)))

    with pytest.raises(ModelLoadFailed, match="bad"):
        open_backend(LoadSpec(model_id="bad", path=str(path)))


def test_a_context_that_no_memory_holds_is_refused_before_it_is_tried(model_path: Path) -> None:
    with pytest.raises(OutOfMemory):
        open_backend(LoadSpec(model_id="m", path=str(model_path), n_ctx=2**31 - 1))


def test_the_grammar_tokenizer_is_made_once_beside_the_load_before_a_request_wants_it(spec: LoadSpec) -> None:
    loaded: Any = open_backend(spec)
    maker = loaded._tokenizer_maker
    if maker is not None:
        maker.join()
    made = loaded._tokenizer
    asked = [loaded.grammar_tokenizer() for _ in range(2)]
    loaded.close()

    assert made is not None
    assert asked == [made, made]
