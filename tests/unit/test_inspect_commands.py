"""`explain`, `plan validate|diff|id` and `schema`: plans looked at, and none run."""

from __future__ import annotations

import json

import pytest
from localllm.errors import InvalidPlan, NotFound, UsageError
from localllm.executors.events import Result
from localllm.executors.wording import text_of
from localllm.planner.cli import parse
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.identity import plan_id

STEPS = """\
format_version: "1.0"
vars: {n: 3}
steps:
  - {name: first, plan: {command: logs, lines: "${n}"}, capture: {file: $.result.file}}
  - {plan: {command: models.show, model: "${file}"}}
"""


@pytest.fixture
def ask(run_plan, make_context):
    """The result of a command, and its text."""

    def asked(command, **fields):
        events = run_plan({"command": command, **fields}, make_context())
        result = events[-1]
        assert isinstance(result, Result)
        return result, text_of(command, result)

    return asked


@pytest.fixture
def files(tmp_path):
    (tmp_path / "steps.plan.yaml").write_text(STEPS)
    (tmp_path / "load.json").write_text('{"command": "models.load", "model": "m", "n_ctx": 512}')
    (tmp_path / "load2.yaml").write_text("command: models.load\nmodel: m\nn_ctx: 1024\npin: true\n")
    return lambda name: str(tmp_path / name)


def test_a_command_line_is_explained_through_every_door(ask):
    result, text = ask("explain", target=["chat", "Why?", "--temperature", "0", "--model", "m"])
    (plan,) = result.data["plans"]
    (report,) = [plan["report"]]

    assert plan["plan_id"] == plan_id(dump_plan(load_plan(parse(plan["argv"]).raw)))
    assert plan["http"]["path"] == "/v1/chat/completions"
    assert plan["http"]["body"]["temperature"] == 0
    assert report["plan_id"] == plan["plan_id"]
    assert "curl http://" in text
    assert "httpx.post(" in text


def test_a_plan_that_no_server_runs_has_no_curl(ask):
    result, text = ask("explain", target=["config", "set", "port", "1"])
    (plan,) = result.data["plans"]

    assert (plan["http"], plan["curl"]) == (None, None)
    assert plan["command_line"] == "localllm config set -- port 1"
    assert "subprocess" in plan["python"]
    assert "curl" not in text


def test_each_step_of_a_file_is_explained_and_one_that_needs_a_capture_says_so(ask, files):
    result, text = ask("explain", target=[files("steps.plan.yaml")])
    first, second = result.data["plans"]

    assert first["argv"] == ["logs", "--lines=3"]
    assert second["plan_id"] is None
    assert second["error"]["message"] == "needs what an earlier step captures"
    assert "models.show  no id yet" in text
    assert "first  sha256:" in text


def test_explaining_help_is_no_plan(ask):
    with pytest.raises(UsageError):
        ask("explain", target=["chat", "--help"])


def test_files_of_every_kind_are_validated_at_once(ask, files):
    result, text = ask("plan.validate", files=[files("steps.plan.yaml"), files("load.json"), files("load2.yaml")])

    assert [row["kind"] for row in result.data["files"]] == ["plan-file", "plan", "plan"]
    assert result.data["plans"] == 4
    assert text.count("valid") == 3


def test_every_fault_of_every_file_is_told(ask, files, tmp_path):
    (tmp_path / "bad.json").write_text('{"command": "models.load",\n "n_ctx": 1}')
    (tmp_path / "bad.plan.yaml").write_text("format_version: '1.0'\nsteps:\n  - plan: {command: nope}\n")
    with pytest.raises(InvalidPlan) as refused:
        ask("plan.validate", files=[files("bad.json"), files("bad.plan.yaml"), files("gone.json")])
    found = [(each["file"], each["line"], each["path"]) for each in refused.value.data["problems"]]

    assert found == [
        (files("bad.json"), 1, "$"),
        (files("bad.json"), 2, "$.n_ctx"),
        (files("bad.plan.yaml"), 3, "$.steps[0].plan.command"),
        (files("gone.json"), 1, "$"),
    ]
    with pytest.raises(NotFound):
        ask("plan.validate", files=[files("gone.json")])


def test_two_plans_are_compared_with_their_defaults(ask, files):
    result, text = ask("plan.diff", a=files("load.json"), b=files("load2.yaml"))
    same, _ = ask("plan.diff", a=files("load.json"), b=files("load.json"))

    assert not result.ok
    assert sorted(result.data["differences"], key=lambda each: each["path"]) == [
        {"path": "$.n_ctx", "before": 512, "after": 1024},
        {"path": "$.pin", "before": False, "after": True},
    ]
    assert "$.n_ctx\n  - 512\n  + 1024" in text
    assert same.ok
    assert same.data["same"]


def test_a_report_is_compared_with_a_report_and_with_a_plan(ask, files, tmp_path):
    explained, _ = ask("explain", target=["status"])
    report = explained.data["plans"][0]["report"]
    (tmp_path / "a.json").write_text(json.dumps(report))
    (tmp_path / "b.json").write_text(json.dumps({**report, "warnings": ["x"]}))
    (tmp_path / "c.json").write_text('{"command": "status"}')
    reports, _ = ask("plan.diff", a=files("a.json"), b=files("b.json"))
    mixed, _ = ask("plan.diff", a=files("a.json"), b=files("c.json"))

    assert reports.data["differences"] == [{"path": "$.warnings[0]", "after": "x"}]
    assert mixed.data["same"]


def test_the_id_is_the_same_for_a_file_and_a_command_line(ask, files):
    result, text = ask("plan.id", file=files("load.json"))
    steps, lines = ask("plan.id", file=files("steps.plan.yaml"))
    wanted = plan_id(dump_plan(load_plan(parse(["models", "load", "m", "--n-ctx", "512"]).raw)))

    assert result.data["plan_id"] == text == wanted
    assert steps.data["plans"][1] == {
        "name": "models.show",
        "plan_id": None,
        "reason": "needs what an earlier step captures",
    }
    assert lines.splitlines()[1].startswith("needs what")


def test_a_variable_changes_the_id(ask, files):
    one, _ = ask("plan.id", file=files("steps.plan.yaml"))
    two, _ = ask("plan.id", file=files("steps.plan.yaml"), var=["n=4"])

    assert one.data["plans"][0]["plan_id"] != two.data["plans"][0]["plan_id"]
    with pytest.raises(InvalidPlan, match="is not `name=value`"):
        ask("plan.id", file=files("steps.plan.yaml"), var=["n"])


def test_schemas_are_listed_and_printed(ask):
    listed, lines = ask("schema")
    one, text = ask("schema", name="plan-file")

    names = {row["name"] for row in listed.data["schemas"]}
    assert {"command-plan", "plan-file", "report", "events", "error", "config", "result.status"} <= names
    assert "plan-file" in lines
    assert json.loads(text) == one.data
    assert one.data["$id"] == "urn:localllm:schema:plan-file:1.0"
    with pytest.raises(NotFound):
        ask("schema", name="nope")
