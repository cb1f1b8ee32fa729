"""The code of docs/extending.md on tests runs as printed, block after block."""

from __future__ import annotations

import re

from orderlens import testing
from support.pages import section

PAGE = section("extending", "Helpers for your tests")


def test_the_examples_run_and_every_helper_is_named(capsys):
    scope: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(code, scope)
    shown = capsys.readouterr().out
    assert "position  token_id" in shown
    assert "max-prob  3" in shown
    left = [name for name in testing.__all__ if name not in PAGE and not name.startswith("random_path")]
    assert not left
