"""Prompts put as questions in a model's chat template, by keyword and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.samples import Sample, in_chat
from orderlens.testing.dense import write_dense


class _Template:
    source = "template"

    def render(self, messages: list[dict[str, str]], *, reply: bool = True, **_: Any) -> str:
        assert [message["role"] for message in messages] == ["user"]
        return f"Q {messages[0]['content']} A{'…' if reply else ''}"


@pytest.fixture
def talker() -> HiddenMarkovModel:
    model = HiddenMarkovModel.parse("")
    model.chat = _Template()  # type: ignore[attr-defined]
    return model


def test_only_the_prompt_is_put_as_a_question(talker: HiddenMarkovModel) -> None:
    given = Sample("a", "who", target="me", suffix="there", task="t")
    assert in_chat(talker, [given]) == [Sample("a", "Q who A…", target="me", suffix="there", task="t")]


@pytest.mark.parametrize("sample", [Sample("s1", [1, 2]), Sample("s1", "", template="a [[2]] b")])
def test_what_is_no_question_is_refused(talker: HiddenMarkovModel, sample: Sample) -> None:
    with pytest.raises(UserInputError, match=r"sample 's1': only a prompt given as text .* --chat"):
        in_chat(talker, [sample])


def test_scores_are_those_of_the_rendered_prompt(talker: HiddenMarkovModel) -> None:
    ways = [("Q the cat A…", False), ("the cat", True), ("the cat", False)]
    means = []
    for prompt, chat in ways:
        run = ol.score(talker, [Sample("a", prompt, target="sat on the mat")], "forced-ar", chat=chat)
        means.append(run.samples().to_arrow()["mean"][0].as_py())
        assert run.spec.get("chat") == (True if chat else None)
    assert means[0] == means[1] != means[2]


def test_questions_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "model", tmp_path / "run"
    write_dense(folder, family="Dream")
    asked = ["generate", "--model", str(folder), "--orders", "forced-ar", "--max-new-tokens", "4"]
    assert main([*asked, "--prompt", "Who?", "--prompt", "When?", "--chat", "-o", str(out)]) == 0
    run = ol.open_run(out)
    template = ol.load_model(str(folder)).chat  # type: ignore[attr-defined]
    shown = {row["sample_id"]: row["prompt_text"] for row in run.table("outputs").to_arrow().to_pylist()}
    assert shown == {
        f"prompt-{place}": template.render([{"role": "user", "content": text}])
        for place, text in enumerate(("Who?", "When?"))
    }
    capsys.readouterr()
    assert main(["generate", "--model", "hmm", "--prompt", "x", "--chat", "-o", str(tmp_path / "other")]) == 2
    assert "hmm has no chat template; leave out --chat" in capsys.readouterr().err
