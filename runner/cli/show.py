"""`runner show MODEL`: what is known of a model, from the registry and from the headers of its files.

Of a model that is not here only the headers are read from the hub; where they cannot be had, the registry's word is
shown, if it has one. It loads no weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import completing, options, render
from runner.errors import RunnerError, TemplateError, UsageError
from runner.registry import ModelSpec, Registry
from runner.safe_text import safe_line

if TYPE_CHECKING:
    from runner.config import LoadOptions
    from runner.inventory import LocalModel
    from runner.paths import Paths
    from runner.prepare import Located
    from runner.preview import Preview


def show(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name, owner/repo[:quant], a directory or a .gguf file.",
            autocompletion=completing.models,
        ),
    ],
    offline: options.Offline = None,
    template: Annotated[bool, typer.Option("--template", help="Print the chat template alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.show/1.")] = False,
) -> None:
    """Show what is known of a model, and what it would take here."""
    from runner.inventory import unfinished
    from runner.paths import user_paths
    from runner.prepare import locate
    from runner.settings import load_settings

    paths = user_paths()
    registry = Registry.load_for(paths)
    spec = registry.resolve(model)
    located = None if spec.origin == "fake" or _is_script(spec) else locate(spec)
    facts = _facts(spec, located)
    begun = None if facts["is_local"] else unfinished(spec, registry)
    if template:
        _print_template(spec, located, facts["chat_template"], begun)
        return
    facts["state"] = begun.state if begun is not None else "complete" if facts["is_local"] else "absent"
    settings = load_settings(paths)
    is_known = bool(begun or facts["is_local"] or spec.origin == "registry" or spec.parameters)
    seen = _preview(spec, settings.load_options(), paths, offline=settings.is_offline(offline), is_known=is_known)
    if seen is not None:
        facts.update(_previewed(seen))
    if as_json:
        render.emit_json("runner.show/1", facts)
    else:
        _print_facts(facts, seen, begun)


def _preview(
    spec: ModelSpec, load_options: LoadOptions, paths: Paths, *, offline: bool, is_known: bool
) -> Preview | None:
    """The estimate; None, after saying why, where there is none: what is known without it is shown all the same.

    is_known: there is something to be shown. Raises RunnerError where the hub alone could tell of the model.
    """
    from runner.preview import preview

    try:
        return preview(spec, load_options, offline=offline, paths=paths)
    except RunnerError as error:
        if not is_known:
            raise
        render.narrate(f"No estimate: {error.message}")
        return None


def _previewed(seen: Preview) -> dict[str, Any]:
    """What the headers say over what the registry does, and the estimate."""
    from runner.cli.fit_text import estimate_payload

    plain = estimate_payload(seen)
    found = {
        "architecture": seen.architecture,
        "parameters": seen.num_parameters,
        "context_length": seen.context_length,
        "quantization": seen.quantization,
        "active_parameters": seen.num_active_parameters,
        "bpw": seen.bpw,
        "download_bytes": seen.download_bytes,
        "backend": plain["backing"],
        "fit": plain["fit"],
        "fits": plain["fits"],
        "instead": plain["instead"],
        "notes": plain["notes"],
    }
    if not seen.is_local:
        found |= {"size_bytes": seen.size_bytes, "format": seen.format}
    return {key: value for key, value in found.items() if value or key in ("fits", "download_bytes")}


def _is_script(spec: ModelSpec) -> bool:
    from runner.registry import SCRIPT_SUFFIX

    return spec.path is not None and spec.path.name.endswith(SCRIPT_SUFFIX)


def _print_template(spec: ModelSpec, located: Located | None, text: str | None, begun: LocalModel | None) -> None:
    if begun is not None:
        state, remedy = _begun_in_words(begun)
        raise UsageError(
            f"{spec.name} is not whole on this machine ({state}), and its template is in its files.", hint=f"{remedy}."
        )
    if located is None:
        raise UsageError(
            f"{spec.name} is not on this machine, and its template is in its files.",
            hint=f"`runner chat {spec.name}` fetches it.",
        )
    if text is None:
        raise TemplateError(f"{spec.name} has no chat template.", hint="It completes text: `runner run --raw`.")
    render.data(text)


# --- facts -----------------------------------------------------------------------------------------------------------


def _facts(spec: ModelSpec, located: Located | None) -> dict[str, Any]:
    """Everything that is shown: the registry's word, overruled by what the files say."""
    facts: dict[str, Any] = {
        "name": spec.name,
        "family": spec.family,
        "description": spec.description,
        "architecture": spec.architecture,
        "parameters": spec.parameters,
        "context_length": spec.context,
        "quantization": spec.chosen_quant,
        "quantizations": list(spec.quants),
        "licence": spec.licence,
        "gated": spec.gated,
        "reasoning": spec.reasoning,
        "repo": spec.repo if spec.wants_safetensors else spec.gguf,
        "original_repo": spec.repo,
        "draft": spec.draft,
        "is_local": located is not None or spec.origin == "fake" or _is_script(spec),
        "format": "safetensors" if spec.wants_safetensors else "gguf",
        "files": [],
        "size_bytes": spec.sizes.get(spec.chosen_quant, 0),
        "sampling": {},
        "chat_template": None,
        "chat_template_hash": None,
    }
    if located is None:
        return facts
    from runner.model_files import SAMPLING
    from runner.prepare import sampling_defaults
    from runner.weight_headers import remedies_of

    facts["format"] = located.choice.format
    facts["files"] = [{"path": str(path), "size_bytes": path.stat().st_size} for path in located.files]
    facts["size_bytes"] = located.size_bytes
    with remedies_of(spec):
        read = {"gguf": _of_gguf, "safetensors": _of_safetensors, "packed": _of_packed}[located.choice.format](located)
        defaults = sampling_defaults(located.beside / SAMPLING)[0]
    facts.update({key: value for key, value in read.items() if value})
    facts["sampling"] = {**read["sampling"], **defaults}
    if facts["chat_template"] is not None:
        facts["chat_template_hash"] = _fingerprint(facts["chat_template"])
    return facts


def _of_gguf(located: Located) -> dict[str, Any]:
    from runner.prepare import gguf_sampling
    from runner.quant.gguf_file import read_header

    headers = [read_header(path) for path in located.weights]
    first = headers[0]
    context, licence = first.of_architecture("context_length"), first.metadata.get("general.license")
    template = first.metadata.get("tokenizer.chat_template")
    return {
        "architecture": first.architecture,
        "parameters": sum(header.num_parameters for header in headers),
        "context_length": context if isinstance(context, int) else 0,
        "quantization": first.quantization,
        "licence": licence if isinstance(licence, str) else "",
        "sampling": gguf_sampling(first.metadata),
        "chat_template": template if isinstance(template, str) else None,
    }


def _of_safetensors(located: Located) -> dict[str, Any]:
    from runner.quant.chat_templates import read_chat_templates
    from runner.quant.json_file import read_json_if_there
    from runner.quant.safetensors_file import read_header

    tensors = [tensor for path in located.weights for tensor in read_header(path).values()]
    sizes: dict[str, int] = {}
    parameters = 0
    for tensor in tensors:
        count = 1
        for size in tensor.shape:
            count *= size
        parameters += count
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    config = read_json_if_there(located.directory / "config.json")
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    context = text.get("max_position_embeddings")
    return {
        "architecture": str(config.get("model_type", "")),
        "parameters": parameters,
        "context_length": context if isinstance(context, int) else 0,
        "quantization": max(sizes, key=lambda dtype: sizes[dtype], default=""),
        "sampling": {},
        "chat_template": read_chat_templates(located.directory).get("default"),
    }


def _of_packed(located: Located) -> dict[str, Any]:
    from runner.quant.mq.manifest import read_manifest

    manifest = read_manifest(located.directory)
    named = {"parameters": manifest.num_parameters, "quantization": manifest.quantization}
    return {**_of_safetensors(located), **named}


def _fingerprint(template: str) -> str:
    """12 hexadecimal digits of the sha256 of the template's UTF-8 text, so that two set-ups can be compared."""
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# --- printing --------------------------------------------------------------------------------------------------------


def _print_facts(facts: Mapping[str, Any], seen: Preview | None, begun: LocalModel | None) -> None:
    from runner.cli.fit_text import fit_rows, not_run_rows, print_rows

    estimated = [*not_run_rows(seen), *fit_rows(seen)] if seen is not None and seen.format != "script" else []
    rows = [("name", facts["name"]), *_lines(facts), *_state_lines(facts, begun), *estimated]
    print_rows([(label, safe_line(text)) for label, text in rows if text])


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    size = render.decimal_size(facts["size_bytes"]) if facts["size_bytes"] else ""
    sampling = ", ".join(f"{name} {value:g}" for name, value in facts["sampling"].items())
    gated = f"yes: accept the licence of {facts['original_repo']} first" if facts["gated"] else ""
    return [
        ("description", facts["description"]),
        ("family", facts["family"]),
        ("architecture", facts["architecture"]),
        ("parameters", render.short_count(facts["parameters"]) if facts["parameters"] else ""),
        ("trained for", f"{facts['context_length']} tokens" if facts["context_length"] else ""),
        ("quantization", facts["quantization"]),
        ("offered", ", ".join(facts["quantizations"])),
        ("size", size),
        ("licence", facts["licence"]),
        ("gated", gated + " (not for the GGUF files)" if gated and facts["format"] == "gguf" else gated),
        ("thinks", "yes" if facts["reasoning"] else ""),
        ("sampling", sampling),
        ("chat template", f"{facts['chat_template_hash']} (--template prints it)" if facts["chat_template"] else ""),
        ("draft model", facts["draft"]),
        ("repository", facts["repo"]),
        ("original", facts["original_repo"] if facts["original_repo"] != facts["repo"] else ""),
    ]


def _state_lines(facts: Mapping[str, Any], begun: LocalModel | None) -> list[tuple[str, str]]:
    """Whether it is here, and where; of what is here in part, how to go on."""
    if begun is not None:
        state, remedy = _begun_in_words(begun)
        return [("state", state), ("", remedy)]
    where = [f"{file['path']}  ({render.decimal_size(file['size_bytes'])})" for file in facts["files"]]
    return [
        ("state", "on this machine" if facts["is_local"] else "not on this machine"),
        *(("file" if i == 0 else "", path) for i, path in enumerate(where)),
    ]


def _begun_in_words(begun: LocalModel) -> tuple[str, str]:
    """How much of it is here, and how to go on."""
    from runner.cli.ls import state_in_words

    name = safe_line(begun.name)
    remedies = {
        "partial": f"`runner pull {name}` goes on with it, `runner rm {name}` deletes it",
        "damaged": f"`runner verify {name} --repair` fetches what is damaged or missing",
    }
    return state_in_words(begun), remedies[begun.state]
