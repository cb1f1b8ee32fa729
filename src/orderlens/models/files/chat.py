"""Chat templates: from messages to the prompt text that a chat model was trained on.

The template comes from ``chat_template.jinja`` or ``tokenizer_config.json`` of the checkpoint and is rendered
in jinja's sandbox, with the conventions that published templates rely on.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError, one_line
from orderlens.models.files.tokenizer import FastTokenizer

Message = Mapping[str, str]


class ChatTemplate:
    """One compiled template and the special tokens it may name."""

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        self.source, self._named = source, dict(named_tokens)
        self._template = _compile(source)

    def render(self, messages: Sequence[Message], *, reply: bool = True, **variables: Any) -> str:
        """Return the prompt text.

        Args:
            messages: objects with ``role`` and ``content``.
            reply: whether the prompt ends with the start of the assistant's turn.
            variables: further variables of the template, e.g. ``enable_thinking``.
        """
        values = {**self._named, "messages": list(messages), "add_generation_prompt": reply, **variables}
        from jinja2 import TemplateError

        try:
            return str(self._template.render(values))
        except TemplateError as error:
            raise UserInputError(f"the chat template refused these messages: {one_line(error)}") from None


def find_template(tokenizer: FastTokenizer, name: str = "default") -> ChatTemplate | None:
    """Return the checkpoint's chat template, or None when it has none."""
    source = None if tokenizer.folder is None else _source(tokenizer.folder, tokenizer.settings, name)
    return None if source is None else ChatTemplate(source, tokenizer.named_tokens)


def _source(folder: Path, settings: Mapping[str, Any], name: str) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        entries = (entry for entry in value if isinstance(entry, Mapping) and entry.get("name") == name)
        value = next(entries, {}).get("template")
    return value if isinstance(value, str) else None


def _compile(source: str) -> Any:
    try:
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPackageError("chat templates need jinja2; install orderlens[torch]") from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ModelLoadError(f"the chat template is malformed: {one_line(error)}") from None


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(pattern: str) -> str:
    return dt.datetime.now(tz=dt.UTC).strftime(pattern)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Serialise without escaping for HTML, which jinja's own filter would do."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
