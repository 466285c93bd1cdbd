"""A plan's command line and its HTTP request mean the very plan they were made of, for every plan."""

from __future__ import annotations

import ast
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from localllm.api.wire import chat_call, text_call
from localllm.planner.cli import parse
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.doors import command_line, curl_of, http_request, python_of, short
from localllm.planner.identity import plan_id
from localllm.planner.spell import argv_of

CALLS = {"/v1/chat/completions": chat_call, "/v1/completions": text_call}


def id_of(raw):
    return plan_id(dump_plan(load_plan(raw)))


@settings(max_examples=25)
@given(data=st.data())
def test_the_command_line_parses_back_to_the_same_id(raw_plans, data):
    import shlex

    plan = load_plan(data.draw(raw_plans))
    argv = argv_of(short(plan))

    assert id_of(parse(argv).raw) == id_of(short(plan)) == plan_id(dump_plan(plan))
    assert shlex.split(command_line(short(plan))) == ["localllm", *argv]


@settings(max_examples=25)
@given(data=st.data())
def test_the_http_request_means_the_same_id(raw_plans, data):
    plan = load_plan(data.draw(raw_plans))
    request = http_request(plan)
    if request is None:
        assert not plan.on_server
        return
    body = json.loads(json.dumps(request.body))
    raw = body["plan"] if request.path == "/admin/plans" else CALLS[request.path](body).plan

    assert id_of(raw) == plan_id(dump_plan(plan))


@settings(max_examples=25)
@given(data=st.data())
def test_the_python_program_parses_and_curl_is_one_command(raw_plans, data):
    import shlex

    plan = load_plan(data.draw(raw_plans))
    request = http_request(plan)

    ast.parse(python_of(plan, "http://127.0.0.1:8484"))
    if request is not None:
        words = shlex.split(curl_of(request, "http://127.0.0.1:8484").replace("\\\n", " "))
        assert words[:2] == ["curl", f"http://127.0.0.1:8484{request.path}"]
        assert json.loads(words[words.index("-d") + 1]) == json.loads(json.dumps(request.body))
