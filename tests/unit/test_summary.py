import pytest
from localllm.planner.codec import load_plan
from localllm.planner.settings import resolve_settings
from localllm.planner.summary import one_line, summarize


def summary_of(raw, **flags):
    settings = resolve_settings({"models_dir": "/models", **flags}, {}, config_file="/dev/null")
    return summarize(load_plan(raw), settings)


def test_it_starts_with_the_full_command_and_marks_defaults():
    lines = summary_of({"command": "models.list", "kind": "all"}).splitlines()

    assert lines == [
        "localllm models list",
        "  kind           all",
        "  output         text",
        "  models folder  /models",
    ]
    assert "  kind           model (default)" in summary_of({"command": "models.list"}).splitlines()


def test_a_plan_for_the_server_names_the_server():
    assert "  server         http://box:1" in summary_of({"command": "status"}, server="http://box:1").splitlines()
    assert "server" not in summary_of({"command": "doctor"})


def test_a_conversation_is_told_by_its_length_and_its_last_message():
    messages = [{"role": "user", "content": "first"}, {"role": "user", "content": "x" * 500}]
    text = summary_of({"command": "chat", "messages": messages})

    assert "2 messages, the last from user: xxx" in text
    assert max(len(line) for line in text.splitlines()) < 130
    assert "1 message, the last from assistant" in summary_of(
        {"command": "chat", "messages": [{"role": "assistant", "content": None}]}
    )


def test_a_name_from_outside_cannot_write_to_the_terminal():
    text = summary_of({"command": "models.show", "model": "a\x1b]0;x\x07\nserver  evil"})

    assert "\x1b" not in text
    assert "\\x1b]0;x\\x07\\nserver  evil" in text


@pytest.mark.parametrize(
    "text, limit, shown",
    [("abc", None, "abc"), ("abcdefghij", 5, "ab…ij"), ("a\tb", None, "a\\tb"), ("é👍", None, "é👍")],
)
def test_text_becomes_one_safe_line(text, limit, shown):
    assert one_line(text, limit) == shown
