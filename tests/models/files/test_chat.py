from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
tokenizers = pytest.importorskip("tokenizers")

from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError  # noqa: E402
from orderlens.models.files.chat import ChatTemplate, find_template  # noqa: E402
from orderlens.models.files.tokenizer import FastTokenizer  # noqa: E402

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}]


def tokenizer(folder: Path, settings: dict[str, object]) -> FastTokenizer:
    model = tokenizers.models.WordLevel({"a": 0, "<s>": 1}, unk_token="a")
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return FastTokenizer.from_folder(folder)


def test_blocks_are_trimmed_and_nothing_is_escaped() -> None:
    source = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ bos_token }}{{ m['content'] }}\n"
        "    {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(TURNS) == "<s>Hi <b>\n"


def test_reply_and_further_variables() -> None:
    source = "{{ messages | length }}{% if add_generation_prompt %}>{% endif %}{{ mode | default('plain') }}"
    template = ChatTemplate(source, {})
    assert template.render(TURNS) == "2>plain"
    assert template.render(TURNS, reply=False, mode="x") == "2x"


def test_conventions_of_published_templates() -> None:
    source = (
        "{{ messages[1] | tojson }}{{ strftime_now('%Y') | length }}"
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"
    )
    assert ChatTemplate(source, {}).render(TURNS) == '{"role": "user", "content": "Hi <b>"}4system'


def test_a_template_may_refuse() -> None:
    with pytest.raises(UserInputError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}).render(TURNS)


def test_the_sandbox_holds() -> None:
    with pytest.raises(UserInputError, match="refused"):
        ChatTemplate("{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}", {}).render(TURNS)


def test_malformed_template() -> None:
    with pytest.raises(ModelLoadError, match="malformed"):
        ChatTemplate("{% for %}", {})


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    assert find_template(tokenizer(tmp_path, {})) is None
    found = find_template(tokenizer(tmp_path, {"chat_template": "{{ bos_token }}", "bos_token": "<s>"}))
    assert found is not None
    assert found.render(TURNS) == "<s>"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    several = tokenizer(tmp_path, {"chat_template": named})
    assert find_template(several).source == "D"  # type: ignore[union-attr]
    assert find_template(several, "tool_use").source == "T"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("file")
    assert find_template(several).source == "file"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ([{"name": "default", "template": "A"}, {"name": "tools", "template": "B"}], "A"),
        ([{"name": "tools", "template": "B"}], None),
        ([{"name": "default"}], None),
        (["A", {"template": "C"}], None),
        ({"default": "A"}, None),
        (None, None),
    ],
)
def test_templates_by_name_and_settings_that_hold_none(tmp_path: Path, value: object, rendered: str) -> None:
    found = find_template(tokenizer(tmp_path, {"chat_template": value}))
    assert (None if found is None else found.render(TURNS)) == rendered


def test_a_file_beside_the_settings_comes_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    found = find_template(tokenizer(tmp_path, {"chat_template": "settings"}))
    assert found is not None
    assert found.source == "file"


def test_a_malformed_template_is_the_checkpoints_fault() -> None:
    with pytest.raises(ModelLoadError, match="the chat template is malformed"):
        ChatTemplate("{% for m in %}", {})


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    source = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(UserInputError, match="the chat template refused these messages"):
        ChatTemplate(source, {}).render(TURNS)


def test_without_jinja_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPackageError, match=r"chat templates need jinja2; install orderlens\[torch\]"):
        ChatTemplate("x", {})
