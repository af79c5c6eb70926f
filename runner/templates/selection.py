"""Which template a model uses: the forms of tokenizer_config's chat_template, and a fingerprint.

It renders nothing and reads no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from runner.errors import TemplateError, nearest_hint


def template_hash(template: str) -> str:
    """12 hexadecimal digits of the sha256 of the template's UTF-8 text: shown, so that two set-ups can be compared."""
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def select_template(value: object, name: str = "default") -> str | None:
    """The template called `name` in a `chat_template` value: a text, a list of {name, template}, or a mapping.

    A single text is the template whatever `name` says; None stays None. TemplateError for another form or name.
    """
    if value is None or isinstance(value, str):
        return value
    templates = _named_templates(value)
    if name in templates:
        return templates[name]
    if name == "default" and len(templates) == 1:
        return next(iter(templates.values()))
    raise TemplateError(f"The model has no chat template named {name!r}.", hint=nearest_hint(name, templates))


def _named_templates(value: object) -> dict[str, str]:
    items: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        items = [(item.get("name"), item.get("template")) for item in value]
    templates = {name: text for name, text in items if isinstance(name, str) and isinstance(text, str)}
    if not templates or len(templates) != len(items):
        raise TemplateError(
            "The model's chat_template is not a template, a list of named templates or a mapping of them.",
            hint="Its tokenizer_config.json is damaged: fetch the model again.",
        )
    return templates
