import json
import shutil

import jsonschema
import pytest
from localllm.errors import NotFound
from localllm.planner import schema
from localllm.planner.plans import COMMANDS
from localllm.planner.settings import settings_table
from localllm.schemas import FOLDER, load_schema, problems, schema_names

REPORT = {
    "format_version": "1.0",
    "plan": {"command": "status"},
    "plan_id": "sha256:" + "0" * 64,
    "summary": "localllm status",
    "effects": ["read"],
    "where": "server",
    "resolved": {},
    "provenance": {"n_ctx": {"value": 8, "origin": "GGUF", "fate": "applied"}},
    "preconditions": [{"kind": "file", "path": "m.gguf"}],
    "unknown": [],
    "warnings": [],
}


def messages(name, document):
    return [str(problem) for problem in problems(name, document)]


def test_the_committed_schemas_are_what_the_classes_say():
    assert schema.stale() == [], schema.FIX


def test_a_stale_schema_is_named_with_the_command_that_mends_it(tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(FOLDER, tmp_path / "schemas", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "plan.chat.schema.json").write_text("{}")
    (folder / "plan.gone.schema.json").write_text("{}")
    monkeypatch.setattr(schema.stale, "__defaults__", (folder,))

    assert schema.main(["--check"]) == 1
    err = capsys.readouterr().err
    assert "make schemas" in err
    assert "plan.chat.schema.json, plan.gone.schema.json" in err


def test_writing_brings_a_folder_up_to_date(tmp_path):
    (tmp_path / "plan.gone.schema.json").write_text("{}")

    assert "plan.gone.schema.json" in schema.write(tmp_path)
    assert schema.stale(tmp_path) == []
    assert not (tmp_path / "plan.gone.schema.json").exists()


@pytest.mark.parametrize("name", schema_names())
def test_every_schema_is_valid_2020_12_with_a_versioned_id(name):
    document = load_schema(name)

    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["$id"] == f"urn:localllm:schema:{name}:1.0"
    assert document["description"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_plan_schema_is_closed_and_describes_every_field(command):
    document = load_schema(f"plan.{command}")

    assert document["additionalProperties"] is False
    assert document["required"][0] == "command"
    for name, field in document["properties"].items():
        assert name == "command" or field["description"]


def test_bounds_choices_defaults_and_unions_reach_the_schema():
    load = load_schema("plan.models.load")["properties"]
    chat = load_schema("plan.chat")

    assert load["n_ctx"]["type"] == ["integer", "null"]
    assert (load["n_ctx"]["minimum"], load["n_ctx"]["maximum"], load["n_ctx"]["default"]) == (8, 2**31 - 1, None)
    assert load["gpu_layers"]["anyOf"][1] == {"enum": ["auto", "all"]}
    assert load["flash_attention"]["enum"] == ["auto", "on", "off", None]
    assert chat["properties"]["messages"]["items"] == {"$ref": "#/$defs/Message"}
    assert chat["properties"]["repeat_penalty"]["exclusiveMinimum"] == 0
    assert chat["$defs"]["Message"]["additionalProperties"] is False


def test_the_union_names_the_fault_of_the_command_that_was_meant():
    assert messages("command-plan", {"command": "models.load", "model": "m", "n_ctx": "3"}) == [
        "$.n_ctx: '3' is not of type 'integer', 'null'"
    ]
    assert "is not one of" in messages("command-plan", {"command": "models.laod"})[0]
    assert messages("command-plan", {}) == ["$: 'command' is a required property"]


def test_results_are_open_and_the_report_is_checked():
    assert messages("report", {**REPORT, "added_later": 1}) == []
    assert messages("report", {**REPORT, "where": "moon"})
    assert messages("report", {key: value for key, value in REPORT.items() if key != "plan_id"})


def test_events_and_errors_have_schemas():
    assert messages("events", {"event": "result", "ok": True, "data": {}}) == []
    assert messages("events", {"event": "delta", "index": 0, "delta": {"content": "a"}, "finish_reason": None}) == []
    assert messages("events", {"event": "result", "data": {}}) == ["$: 'ok' is a required property"]
    assert messages("error", {"error": {"code": "usage", "message": "m", "exit_code": 2}}) == []
    assert messages("error", {"error": {"code": "usage", "message": "", "exit_code": 2}}) == [
        "$.error.message: is empty"
    ]


def test_the_config_schema_has_every_setting_that_a_file_may_hold():
    properties = load_schema("config")["properties"]

    assert set(properties) == {name for name, setting in settings_table().items() if setting.in_file}
    assert "api_key" not in properties
    assert messages("config", {"port": 99999, "portt": 1}) == [
        "$.port: 99999 is greater than the maximum of 65535",
        "$.portt: unknown field `portt`, did you mean `port`?",
    ]


@pytest.mark.parametrize("name", ["nope", "../planner/x", ""])
def test_an_unknown_schema_is_an_error_that_lists_what_exists(name):
    with pytest.raises(NotFound) as missing:
        load_schema(name)
    assert "command-plan" in missing.value.data["available"]


def test_schema_files_end_with_a_line_break_and_keep_non_ascii():
    for path in FOLDER.glob("*.schema.json"):
        text = path.read_text("utf-8")
        assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
