"""The chat templates in the files beside a model's weights, by the rules of transformers: a file of its own wins.

It renders nothing; which template a GGUF has is said in its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from runner.errors import BadModelFile
from runner.quant.json_file import DAMAGED, read_json_if_there


def read_chat_templates(directory: Path) -> Mapping[str, str]:
    """The chat templates by name, from chat_template.jinja, chat_template.json or tokenizer_config.json.

    Raises BadModelFile for a file that cannot be read.
    """
    named: dict[str, str] = {}
    value = read_json_if_there(directory / "tokenizer_config.json").get("chat_template")
    if value is None:
        value = read_json_if_there(directory / "chat_template.json").get("chat_template")
    if isinstance(value, str):
        named["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if (
                isinstance(entry, dict)
                and isinstance(entry.get("name"), str)
                and isinstance(entry.get("template"), str)
            ):
                named[entry["name"]] = entry["template"]
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = _text(path)
    if (path := directory / "chat_template.jinja").is_file():
        named["default"] = _text(path)
    return MappingProxyType(named)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadModelFile(f"The chat template {path} cannot be read: {why}.", hint=DAMAGED) from error
