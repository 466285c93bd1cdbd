import json

from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.identity import plan_id
from localllm.planner.report import Facts, build_report
from localllm.planner.settings import resolve_settings
from localllm.schemas import problems

RAW = {"command": "models.load", "model": "m", "n_ctx": 512}


def report_of(facts, raw=RAW, env=None):
    settings = resolve_settings({"output": "json"}, env or {}, config_file="/dev/null")
    return build_report(load_plan(raw), facts, settings)


def test_it_has_every_part_in_reading_order_and_keeps_its_schema():
    report = report_of(Facts())

    assert list(report) == [
        "format_version",
        "plan",
        "plan_id",
        "summary",
        "effects",
        "where",
        "depth",
        "resolved",
        "provenance",
        "preconditions",
        "unknown",
        "warnings",
    ]
    assert problems("report", report) == []
    assert json.loads(json.dumps(report)) == report


def test_the_plan_in_it_is_the_plan_with_its_id():
    report = report_of(Facts())

    assert report["plan"] == dump_plan(load_plan(RAW))
    assert report["plan_id"] == plan_id(report["plan"])
    assert load_plan(report["plan"]) == load_plan(RAW)


def test_each_value_has_its_origin_and_the_executor_knows_better():
    found = {"n_ctx": {"value": 256, "origin": "GGUF", "fate": "approximated"}}
    provenance = report_of(Facts(provenance=found), env={"LOCALLLM_SERVER": "http://box"})["provenance"]

    assert provenance["model"] == {"value": "m", "origin": "plan"}
    assert provenance["pin"] == {"value": False, "origin": "default"}
    assert provenance["n_ctx"] == found["n_ctx"]
    assert provenance["settings.server"] == {"value": "http://box", "origin": "env LOCALLLM_SERVER"}
    assert provenance["settings.output"] == {"value": "json", "origin": "flag"}


def test_effects_and_place_are_the_class_s_unless_the_preview_says_otherwise():
    assert report_of(Facts())["effects"] == ["read", "create", "gpu", "exec"]
    assert report_of(Facts())["where"] == "server"

    narrowed = report_of(Facts(effects=("read",), where="local"))
    assert (narrowed["effects"], narrowed["where"]) == (["read"], "local")


def test_what_the_preview_found_is_told():
    facts = Facts(
        resolved={"model": "id"},
        preconditions=({"kind": "file", "path": "m.gguf"},),
        unknown=("whether it fits",),
        warnings=("small",),
        diff={"before": {}, "after": {"loaded": ["m"]}},
    )
    report = report_of(facts, env={"LOCALLLM_MODEL_DIR": "x"})

    assert report["preconditions"] == [{"kind": "file", "path": "m.gguf"}]
    assert report["unknown"] == ["whether it fits"]
    assert report["warnings"][-1] == "small"
    assert "LOCALLLM_MODEL_DIR" in report["warnings"][0]
    assert report["diff"]["after"] == {"loaded": ["m"]}
    assert problems("report", report) == []


def test_no_secret_reaches_a_report():
    assert "sk-secret" not in json.dumps(report_of(Facts(), env={"LOCALLLM_API_KEY": "sk-secret"}))
