"""Plan files: all faults of all files with their places, and steps bound to their variables."""

from __future__ import annotations

from textwrap import dedent

import pytest
from localllm.errors import InvalidPlan, NotFound
from localllm.planner.files.load import load_plan_files, read_vars_file
from localllm.planner.files.steps import applies, bind, iterations


@pytest.fixture
def write(tmp_path):
    def written(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
        return str(path)

    return written


def faults(*paths, **options):
    with pytest.raises(InvalidPlan) as refused:
        load_plan_files(paths, **options)
    return [(p["line"], p["column"], p["path"], p["message"]) for p in refused.value.data["problems"]]


def runs(file, captured=()):
    """The plans of all steps, all iterations, that apply."""
    captured = dict(captured)
    return [
        bind(step, captured, item).plan
        for step in file.steps
        for item in iterations(step, captured)
        if applies(step, captured, item)
    ]


def test_a_file_gives_its_steps_with_defaults_and_places(write):
    path = write(
        "tour.plan.yaml",
        """\
        # yaml-language-server: $schema=plan-file.schema.json
        format_version: "1.0"
        defaults:
          timeout_s: 9
          tags: [all]
          continue_on_error: true
          retry: {times: 2}
          plans: {logs: {lines: 3, level: error}}
        steps:
          - plan: {command: logs, level: debug}
          - name: last
            plan: {command: status}
            tags: [some]
            timeout_s: 1
            continue_on_error: false
            retry: {times: 5, interval_s: 0.1, until: {ok: true}}
        finally:
          - plan: {command: version}
        """,
    )
    (file,) = load_plan_files([path])
    first, second = file.steps

    assert (file.name, file.format_version, file.source) == ("tour", "1.0", path)
    assert first.plan == {"command": "logs", "level": "debug", "lines": 3}
    assert (first.name, first.timeout_s, first.tags, first.continue_on_error) == ("logs", 9, ("all",), True)
    assert (first.retry.times, first.retry.interval_s, first.retry.until) == (2, 1.0, None)
    assert str(first.place) == f"{path}:10:5"
    assert (second.name, second.timeout_s, second.tags) == ("last", 1, ("all", "some"))
    assert second.continue_on_error is False
    assert second.retry.until == {"ok": True}
    assert [step.index for step in (*file.steps, *file.finally_)] == [1, 2, 3]
    assert second.node_path == ("steps", 1)


def test_every_fault_of_every_file_is_told_at_once_with_its_place(write):
    one = write(
        "one.plan.yaml",
        """\
        format_version: "1.0"
        steps:
          - nme: list
            plan: {command: models.list, kind: al}
          - plan: {command: models.lst}
          - plan: {command: models.list, kind: "${kind}"}
          - plan: {command: chat, max_tokens: -1, messages: "${text}"}
            expect: {$.result.x: {"<==": 3}}
            capture: {a: "$["}
        """,
    )
    two = write("two.plan.json", '{"format_version": "1.0", "steps": [{"plan": {"command": "status"}, "tags": 3}]}')
    with pytest.raises(InvalidPlan) as refused:
        load_plan_files([one, two])
    found = [(p["file"], p["line"], p["column"], p["path"]) for p in refused.value.data["problems"]]

    assert found == [
        (one, 3, 5, "$.steps[0].nme"),
        (one, 4, 40, "$.steps[0].plan.kind"),
        (one, 5, 21, "$.steps[1].plan.command"),
        (one, 6, 40, "$.steps[2].plan.kind"),
        (one, 7, 53, "$.steps[3].plan.messages"),
        (one, 8, 34, "$.steps[3].expect['$.result.x']['<==']"),
        (one, 9, 18, "$.steps[3].capture.a"),
        (two, 1, 77, "$.steps[0].tags"),
    ]
    assert f"{one}:3:5: unknown field `nme`, did you mean `name`?" in refused.value.message
    assert "(and 5 more)" in refused.value.message


@pytest.mark.parametrize(
    "text, place, message",
    [
        ("steps: []", (1, 1), "'format_version' is a required property"),
        ("format_version: '2.0'\nsteps: []", (1, 17), "this localllm reads 1.0"),
        ("format_version: soon\nsteps: []", (1, 17), "is a version like `1.0`"),
        ("format_version: '1.0'\nsteps:\n  - {}", (3, 5), "needs one of `plan` and `include`, and not both"),
        ("format_version: '1.0'\nsteps:\n  - {plan: {command: status}, include: x}", (3, 5), "and not both"),
        ("format_version: '1.0'\nsteps:\n  - {plan: {}}", (3, 12), "the plan names no command"),
        ("format_version: '1.0'\nsteps:\n  - {plan: {command: serve}}", (3, 22), "a server has no end"),
        ("format_version: '1.0'\nvars: {a: '${b}'}", (2, 7), "there is no variable `b`"),
        ("format_version: '1.0'\nvars: {a: '${b}', b: '${a}'}", (2, 7), "in a circle: a → b → a"),
        ("format_version: '1.0'\nvars: {k: {$secret: 'env:NOT_SET'}}", (2, 7), "`NOT_SET`, which holds a secret"),
        ("- 1", (1, 1), "is not of type 'object'"),
        (
            "format_version: '1.0'\nsteps:\n  - {plan: {command: status}, if: {n: 1, x: {'<': a}}}",
            (3, 51),
            "takes a number",
        ),
        ("format_version: '1.0'\nsteps:\n  - {plan: {command: status}, for_each: 3}", (3, 41), "takes a list"),
        ("format_version: '1.0'\nsteps:\n  - {plan: {command: status, x: '${a}'}, capture: {a: $.ok}}", (3, 33), "`a`"),
        ("format_version: '1.0'\nsteps:\n  - {plan: {command: status}, retry: {times: -1}}", (3, 46), "less than"),
        ("format_version: '1.0'\nsteps:\n  - {plan: {command: status}, capture: {a-b: $.ok}}", (3, 46), "no name"),
        ("format_version: '1.0'\nsteps:\n  - {include: x.yaml, tags: [a]}", (3, 15), "takes no `tags`"),
        ("format_version: '1.0'\nlock: {models: {m: {sha256: abc}}}", (2, 29), "does not match"),
    ],
)
def test_a_fault_is_told_where_it_is(write, text, place, message):
    found = faults(write("x.plan.yaml", text))

    assert any(fault[:2] == place and message in fault[3] for fault in found), found


def test_a_newer_minor_version_is_read_unless_it_says_what_is_not_known(write):
    newer = "format_version: '1.9'\nsteps:\n  - plan: {command: status}\n"
    (file,) = load_plan_files([write("a.plan.yaml", newer)])
    found = faults(write("b.plan.yaml", newer + "    hooks: 3\n"))

    assert file.format_version == "1.9"
    assert [fault[3] for fault in found] == [
        "the file is of format 1.9 and says what 1.0 does not know: use a newer localllm",
        "unknown field `hooks`",
    ]


def test_a_version_may_be_written_as_a_number(write):
    (file,) = load_plan_files([write("a.plan.yaml", "format_version: 1.0\n")])

    assert list(file.steps) == []


def test_files_that_are_not_there_are_all_named(write, tmp_path):
    with pytest.raises(NotFound) as missing:
        load_plan_files([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])

    assert "a.yaml" in missing.value.message
    assert "b.yaml" in missing.value.message
    assert missing.value.exit_code == 3


VARIABLES = """\
format_version: "1.0"
vars: {model: tiny, n: 4, text: "${model} ${n}"}
steps:
  - plan: {command: chat, model: "${model}", max_tokens: "${n}", messages: [{role: user, content: "${text}"}]}
"""


def test_variables_come_from_the_file_the_environment_and_flags_in_rising_order(write):
    path = write("v.plan.yaml", VARIABLES)

    def plan(**options):
        (file,) = load_plan_files([path], **options)
        (found,) = runs(file)
        return found["model"], found["max_tokens"], found["messages"][0]["content"]

    assert plan() == ("tiny", 4, "tiny 4")
    assert plan(env={"LOCALLLM_VAR_N": "5"}) == ("tiny", 5, "tiny 5")
    assert plan(env={"LOCALLLM_VAR_N": "5"}, vars={"n": 6}) == ("tiny", 6, "tiny 6")


def test_a_value_of_the_wrong_type_is_a_fault_before_anything_runs(write):
    found = faults(write("v.plan.yaml", VARIABLES), vars={"n": "many"})

    assert found == [(4, 58, "$.steps[0].plan.max_tokens", "'many' is not of type 'integer', 'null'")]


def test_a_vars_file_gives_variables(write):
    assert read_vars_file(write("vars.yaml", "a: 1\nb: [x]\n")) == {"a": 1, "b": ["x"]}
    assert read_vars_file(write("vars.json", '{"a": true}')) == {"a": True}


def test_a_step_runs_for_each_item_or_combination(write):
    path = write(
        "each.plan.yaml",
        """\
        format_version: "1.0"
        vars: {names: [a, b]}
        steps:
          - {for_each: "${names}", plan: {command: models.show, model: "${item}-${index}"}}
          - {for_each: [{x: 1}], plan: {command: logs, lines: "${item.x}"}}
          - {for_each: {m: "${names}", n: [1, 2]}, plan: {command: models.load, model: "${m}", n_slots: "${n}"}}
        """,
    )
    (file,) = load_plan_files([path])
    found = runs(file)

    assert [plan.get("model") for plan in found] == ["a-0", "b-1", None, "a", "a", "b", "b"]
    assert [plan.get("n_slots") for plan in found[3:]] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "condition, applies_",
    [
        ("true", True),
        ("false", False),
        ("'${yes}'", True),
        ("'${no}'", False),
        ("{n: 4}", True),
        ("{n: {'>': 4}}", False),
        ("{'$.list[0]': x, n: 4}", True),
        ("'off'", False),
    ],
)
def test_a_condition_decides_whether_a_step_runs(write, condition, applies_):
    text = f"""\
        format_version: "1.0"
        vars: {{yes: true, no: 0, n: 4, list: [x]}}
        steps:
          - if: {condition}
            plan: {{command: status}}
        """
    (file,) = load_plan_files([write("if.plan.yaml", text)])

    assert applies(file.steps[0], {}, {}) is applies_


CAPTURES = """\
format_version: "1.0"
steps:
  - plan: {command: models.list}
    capture: {first: "$.result.models[0].id", count: "$.result.models.length"}
  - plan: {command: models.show, model: "${first}"}
  - plan: {command: logs, lines: "${count}"}
    expect: {"$.result.n": {"<=": "${count}"}, ok: true}
"""


def test_what_a_step_captures_is_known_later_and_left_open_before(write):
    path = write("c.plan.yaml", CAPTURES)
    (file,) = load_plan_files([path])
    bound = bind(file.steps[2], {"first": "m", "count": 3}, {})

    assert bind(file.steps[1], {"first": "m", "count": 3}, {}).plan["model"] == "m"
    assert bound.plan["lines"] == 3
    assert bound.expect == {"$.result.n": {"<=": 3}, "ok": True}


def test_a_capture_is_not_known_before_its_step(write):
    found = faults(
        write(
            "c.plan.yaml",
            CAPTURES.replace("- plan: {command: models.list}", "- plan: {command: models.show, model: '${first}'}"),
        )
    )

    assert found == [(3, 41, "$.steps[0].plan.model", "there is no variable `first`")]


def test_a_file_includes_another_with_variables_of_its_own(write):
    write(
        "parts/inner.plan.yaml",
        """\
        format_version: "1.0"
        vars: {model: inner, suffix: "-${model}"}
        steps:
          - plan: {command: models.show, model: "${model}${suffix}"}
        finally:
          - plan: {command: models.unload, model: "${model}"}
        """,
    )
    path = write(
        "outer.plan.yaml",
        """\
        format_version: "1.0"
        vars: {model: outer}
        steps:
          - include: parts/inner.plan.yaml
          - include: parts/inner.plan.yaml
            vars: {model: "given-${model}"}
          - plan: {command: models.show, model: "${model}"}
        finally:
          - plan: {command: status}
        """,
    )
    (file,) = load_plan_files([path])
    (strong,) = load_plan_files([path], vars={"model": "flag"})

    assert [plan["model"] for plan in runs(file)] == ["inner-inner", "given-outer-given-outer", "outer"]
    assert [plan["model"] for plan in runs(strong)] == ["flag-flag", "given-flag-given-flag", "flag"]
    assert [bind(step, {}, {}).plan for step in file.finally_] == [
        {"command": "models.unload", "model": "inner"},
        {"command": "models.unload", "model": "given-outer"},
        {"command": "status"},
    ]
    assert file.steps[0].place.file.endswith("parts/inner.plan.yaml")


def test_an_include_may_pass_on_what_was_captured(write):
    write("inner.plan.yaml", "format_version: '1.0'\nsteps: [{plan: {command: models.show, model: '${m}'}}]\n")
    path = write(
        "outer.plan.yaml",
        """\
        format_version: "1.0"
        steps:
          - {plan: {command: models.list}, capture: {first: "$.result.models[0].id"}}
          - {include: inner.plan.yaml, vars: {m: "${first}"}}
        """,
    )
    (file,) = load_plan_files([path])

    assert bind(file.steps[1], {"first": "found"}, {}).plan["model"] == "found"
    assert bind(file.steps[1], {"first": "other"}, {}).plan["model"] == "other"


def test_a_file_that_includes_itself_is_refused_with_the_path(write, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write("a.plan.yaml", "format_version: '1.0'\nsteps: [{include: b.plan.yaml}]\n")
    write("b.plan.yaml", "format_version: '1.0'\nsteps: [{include: a.plan.yaml}]\n")

    assert (
        faults("a.plan.yaml") == [(1, 1 + 18, "$", "the file includes itself: a.plan.yaml → b.plan.yaml → a.plan.yaml")]
        or "a.plan.yaml → b.plan.yaml → a.plan.yaml" in faults("a.plan.yaml")[0][3]
    )


def test_an_included_file_that_is_gone_is_told_where_it_is_named(write):
    found = faults(write("a.plan.yaml", "format_version: '1.0'\nsteps:\n  - {include: gone.yaml}\n  - {plan: {}}\n"))

    assert found[0][:2] == (3, 15)
    assert "there is no file" in found[0][3]


def test_a_secret_runs_and_is_never_shown(write):
    text = """\
        format_version: "1.0"
        vars: {key: {$secret: "env:KEY"}}
        steps:
          - name: "with ${key}"
            plan: {command: chat, messages: [{role: user, content: "the key is ${key}"}]}
        """
    (file,) = load_plan_files([write("s.plan.yaml", text)], env={"KEY": "s3cret"})
    bound = bind(file.steps[0], {}, {})

    assert bound.plan["messages"][0]["content"] == "the key is s3cret"
    assert bound.shown["messages"][0]["content"] == "the key is ***"
    assert bound.name == "with ***"
    assert bound.secrets == {"s3cret"}


def test_a_secret_of_the_wrong_kind_is_not_told_in_the_fault(write):
    text = """\
        format_version: "1.0"
        vars: {key: {$secret: "env:KEY"}}
        steps:
          - plan: {command: logs, lines: "${key}"}
        """
    found = faults(write("s.plan.yaml", text), env={"KEY": "s3cret"})

    assert found == [(4, 34, "$.steps[0].plan.lines", "'***' is not of type 'integer'")]


def test_the_documented_form_keeps_the_published_schema(write):
    from localllm.planner.files.load import read_document
    from localllm.planner.files.nodes import plain
    from localllm.schemas import problems

    for text in (VARIABLES, CAPTURES):
        document = plain(read_document(write("x.plan.yaml", text))[1])

        assert problems("plan-file", document) == []
    document["steps"][1]["plan"]["modle"] = "x"

    assert [problem.path for problem in problems("plan-file", document)] == ["$.steps[1].plan.modle"]


def test_files_that_include_each_other_without_end_in_sight_are_a_fault_with_its_place(write):
    for number in range(300):
        write(f"{number}.plan.yaml", f'format_version: "1.0"\nsteps:\n- include: {number + 1}.plan.yaml\n')
    write("300.plan.yaml", 'format_version: "1.0"\nsteps:\n- plan: {command: version}\n')
    start = write("start.plan.yaml", 'format_version: "1.0"\nsteps:\n- include: 0.plan.yaml\n')
    near = write("near.plan.yaml", 'format_version: "1.0"\nsteps:\n- include: 210.plan.yaml\n')

    ((line, column, path, message),) = faults(start)
    assert (line, column, path) == (3, 12, "$")
    assert message == "more than 100 files include each other"
    assert len(load_plan_files([near])[0].steps) == 1
