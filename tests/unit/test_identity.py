import hashlib

import pytest
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.identity import plan_id


def id_of(**raw):
    return plan_id(dump_plan(load_plan(raw)))


def test_the_id_is_the_hash_of_the_canonical_form():
    canonical = b'{"b":1,"command":"x","\xe2\x82\xac":[1.5,null]}'

    assert plan_id({"€": (1.5, None), "command": "x", "b": 1.0}) == "sha256:" + hashlib.sha256(canonical).hexdigest()


def test_a_default_that_is_written_out_changes_nothing():
    assert id_of(command="models.load", model="m") == id_of(
        command="models.load", pin=False, n_ctx=None, adapters=[], model="m"
    )


def test_whole_numbers_are_one_value_however_they_are_written():
    messages = [{"role": "user", "content": "hi"}]

    assert id_of(command="chat", messages=messages, temperature=1) == id_of(
        command="chat", messages=messages, temperature=1.0, n=1.0
    )


@pytest.mark.parametrize("change", [{"model": "n"}, {"n_ctx": 9}, {"mmap": False}, {"gpu_layers": 0}])
def test_each_difference_is_another_id(change):
    assert id_of(**{"command": "models.load", "model": "m", **change}) != id_of(command="models.load", model="m")


def test_names_stay_as_given():
    assert id_of(command="models.show", model="ü") != id_of(command="models.show", model="u\u0308")


def test_large_integers_travel_as_strings():
    assert plan_id({"seed": 2**53}) == plan_id({"seed": str(2**53)})
    assert plan_id({"seed": -(2**60)}) == plan_id({"seed": str(-(2**60))})
    assert plan_id({"seed": 2**53 - 1}) != plan_id({"seed": str(2**53 - 1)})
    assert plan_id({"list": [{"n": 2**64}]}) == plan_id({"list": [{"n": str(2**64)}]})
    assert plan_id({"yes": True}) != plan_id({"yes": 1})
