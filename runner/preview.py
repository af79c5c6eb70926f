"""What a model would take here, before anything large is fetched: from its files, or from their headers on the hub.

`preview` puts together what registry, hub, fit and backends know. It loads no weights and prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from runner import hub
from runner.backends import WITH_HEADS, backend_module, choose
from runner.backends.native.preference import gpu_for_kernels
from runner.backends.vocabulary import mismatch
from runner.config import LONGEST_DRAFT, LONGEST_STATE_DRAFT, LoadOptions
from runner.draft_choice import SAME_FAMILY, DraftChoice, cannot_draft, choose_drafter, limited, unless_inexact, unused
from runner.draft_files import missing_files
from runner.errors import BusyError, RunnerError, UnsuitedOptions
from runner.events import Notice
from runner.fit import (
    Fit,
    ModelFacts,
    Remedy,
    alternatives,
    gguf_facts,
    plan,
    read_facts,
    remedy,
    safetensors_facts,
)
from runner.fit.facts import CONFIG
from runner.fit_history import read_history
from runner.hub_cache import snapshots
from runner.machine import devices
from runner.model_config import parse_model_config
from runner.model_files import Choice, weight_bytes
from runner.own_bits import in_own_bits
from runner.paths import Paths, user_paths
from runner.prepare import listed, locate, not_here, ready, title
from runner.quant.draft_tensors import open_heads, without_head
from runner.quant.packed_files import MANIFEST_NAME
from runner.registry import SCRIPT_SUFFIX, ModelSpec, Registry
from runner.remote_headers import gguf_header, json_object, safetensors_header
from runner.remote_vocabulary import gguf_vocabulary, safetensors_vocabulary
from runner.types import BackendName, CancelToken, ReadyModel, WeightsFormat

# Headers of more shards than this are not read one by one: config.json tells the number of weights as well.
MAX_HEADERS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Backing:
    """Which backend would run the model, and why; name None: none would, for that reason."""

    name: BackendName | None
    reason: str
    refused: tuple[tuple[BackendName, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a model is and what it would take here.

    files: names and bytes; download_bytes: those that are not here yet. num_parameters: of the text model, 0 when not
    known. bpw: bits a weight takes in the files. remedy: what would fit, where it does not. notes: what the numbers
    leave out or assume. notices: what the user should know of this machine. facts: what the estimate was made from.
    drafting: what would draft for it; its memory is in `fit`. in_own_bits: how to have the model for the native
    backend's kernels, where a GPU for them is here and llama.cpp runs these files, or "".
    """

    name: str
    repo: str
    files: tuple[tuple[str, int], ...]
    download_bytes: int
    format: WeightsFormat
    architecture: str
    num_parameters: int
    num_active_parameters: int
    quantization: str
    bpw: float
    context_length: int
    backing: Backing
    fit: Fit
    remedy: Remedy | None
    is_local: bool
    facts: ModelFacts
    drafting: DraftChoice
    in_own_bits: str = ""
    notes: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the weight files."""
        return weight_bytes(self.files)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What is known of the files, here or on the hub. listed: sizes of all files of the repository.

    directory: where they are, or the name of the repository. model: None where they are not here. listing: of the hub,
    where they are not. start: how a GGUF there begins, its whole header. is_sure: that `backing` is the one: of a GGUF
    there with a config.json beside it the native backend may be, which has another tokenizer and goes back further.
    """

    facts: ModelFacts
    directory: Path
    backing: Backing
    files: tuple[tuple[str, int], ...]
    download_bytes: int
    listed: dict[str, int]
    model: ReadyModel | None
    listing: hub.Listing | None = None
    start: bytes = b""
    is_sure: bool = True

    @property
    def backend(self) -> BackendName:
        """The one that would run it; where none would, the one for its files."""
        return self.backing.name or ("llamacpp" if self.facts.format == "gguf" else "native")

    @property
    def longest_draft(self) -> int:
        """Tokens that can be taken back, 0: none. Of layers that keep a state the native backend keeps earlier ones."""
        if self.facts.shape.can_go_back:
            return LONGEST_DRAFT
        return LONGEST_STATE_DRAFT if self.backend == "native" else 0


def preview(spec: ModelSpec, options: LoadOptions, *, offline: bool, paths: Paths | None = None) -> Preview:
    """What `spec` would take here with `options`; from the hub's headers where its files are not here.

    Raises BusyError when they would have to be asked for and `offline` forbids it, and what prepare, hub and the
    readers of headers raise.
    """
    paths = paths or user_paths()
    registry = Registry.load_for(paths)
    found = _found(spec, options, offline=offline)
    facts, machine, notices = found.facts, devices(), list[Notice]()
    backend = found.backend
    drafting, draft = _drafting(spec, options, registry, found, paths.drafts, offline=offline)
    notices += [*unused(options, drafting), *missing_files(drafting.files)]
    made = plan(facts, options, machine, backend, read_history(paths.fit_history), notices.append, draft=draft)
    is_exact = backend != "llamacpp" or made.options.n_gpu_layers == 0
    others = () if made.fit.is_fitting else alternatives(spec, registry, found.listed)
    return Preview(
        name=title(spec),
        repo="" if spec.path is not None else spec.source[0],
        files=found.files,
        download_bytes=found.download_bytes,
        format=facts.format,
        architecture=facts.shape.architecture,
        num_parameters=facts.num_parameters,
        num_active_parameters=facts.shape.num_active_parameters,
        quantization=facts.quantization,
        bpw=facts.bpw,
        context_length=facts.shape.context_length,
        backing=found.backing,
        fit=made.fit,
        remedy=None if made.fit.is_fitting else remedy(facts, made, machine, others),
        is_local=found.model is not None,
        facts=facts,
        drafting=unless_inexact(drafting, options, is_exact=is_exact),
        in_own_bits=in_own_bits(spec, registry, facts.num_parameters) if backend == "llamacpp" else "",
        notes=facts.shape.notes,
        notices=tuple(notices),
    )


def _drafting(
    spec: ModelSpec,
    options: LoadOptions,
    registry: Registry,
    found: _Found,
    heads: Path,
    *,
    offline: bool,
) -> tuple[DraftChoice, ModelFacts | None]:
    """What would draft, and the facts of the model that does; a drafter that cannot be had is an answer too."""
    try:
        can_go_back = found.longest_draft > 0
        choice = choose_drafter(options, spec, registry, found.directory, heads, can_go_back=can_go_back)
        draft = _found(registry.resolve(choice.source), options, offline=offline) if choice.is_model else None
        if draft is not None:
            _check_draft(choice.source, draft, title(spec), found, CancelToken())
        if choice.drafter == "mtp":
            _check_own_head(found, title(spec))
    except RunnerError as error:
        return DraftChoice(drafter=None, reason=f"{error.message} {error.hint}".strip(), is_refused=True), None
    if choice.is_head and found.backend not in WITH_HEADS:
        reason = f"the {found.backend} backend has no {choice.drafter} drafter, --backend native has"
        return DraftChoice(drafter=None, reason=reason, is_refused=True), None
    longest = min(found.longest_draft, LONGEST_DRAFT if draft is None else draft.longest_draft)
    return limited(choice, options.draft_max, longest), None if draft is None else draft.facts


def _check_own_head(found: _Found, name: str) -> None:
    """Raise UnsupportedModel where the files tell that the model came with no head; those on the hub may not."""
    if found.model is not None:
        open_heads(found.model)
    elif found.facts.format == "gguf":
        raise without_head(name)


def remote_draft(draft: ModelSpec, target: ModelSpec, options: LoadOptions, cancel: CancelToken) -> ModelFacts | None:
    """The facts of a draft model that is still to be fetched, which is refused where it cannot draft for `target`.

    None where it is here, or its headers do not tell: that is left to the load, and so is saying that it was cancelled.
    `target` is here. Raises UnsuitedOptions, and as `listed` does.
    """
    if _is_here(draft):
        return None
    listing, choice = listed(draft, cancel)
    try:
        found = _on_the_hub(draft, options, listing, choice, cancel)
    except RunnerError:
        return None
    _check_draft(title(draft), found, title(target), _here(target, options), cancel)
    return found.facts if found.is_sure else None


def _check_draft(name: str, draft: _Found, target_name: str, target: _Found, cancel: CancelToken) -> None:
    """Raise UnsuitedOptions where headers and vocabularies tell that the one cannot draft for the other."""
    if not draft.is_sure:
        return
    if draft.backing.name is None:
        raise UnsuitedOptions(
            f"{name} cannot draft: {draft.backing.reason}", hint="Choose another; --spec suffix needs none."
        )
    if not draft.longest_draft:
        raise cannot_draft(name)
    drafted = _vocabulary(draft, cancel)
    written = _vocabulary(target, cancel) if drafted else ()
    if drafted and written and (differing := mismatch(drafted, written)):
        raise UnsuitedOptions(f"{name} cannot draft for {target_name}: {differing}", hint=SAME_FAMILY)


def _vocabulary(one: _Found, cancel: CancelToken) -> tuple[str, ...]:
    """What its ids stand for; () where no backend would run it, or the hub does not tell."""
    if one.backing.name is None:
        return ()
    if one.model is not None:
        return backend_module(one.backing.name).vocabulary(one.model)
    assert one.listing is not None, "what is not here was found there"
    try:
        if one.backing.name == "llamacpp":
            return gguf_vocabulary(one.start, one.files[0][1])
        return safetensors_vocabulary(one.listing, cancel) if one.facts.format != "gguf" else ()
    except (RunnerError, OSError):
        return ()


def _is_here(spec: ModelSpec) -> bool:
    is_script = spec.path is not None and spec.path.name.endswith(SCRIPT_SUFFIX)
    return spec.origin == "fake" or is_script or locate(spec) is not None


def _found(spec: ModelSpec, options: LoadOptions, *, offline: bool) -> _Found:
    if _is_here(spec):
        return _here(spec, options)
    if offline:
        otherwise = (
            "; `runner show` says what the registry knows" if spec.origin == "registry" or spec.parameters else ""
        )
        raise BusyError(
            f"{not_here(spec)}, and --offline forbids asking the hub for its headers.",
            hint=f"Leave --offline out{otherwise}.",
        )
    return _on_the_hub(spec, options, *listed(spec), CancelToken())


def _here(spec: ModelSpec, options: LoadOptions) -> _Found:
    model = ready(spec, offline=True, on_event=lambda _: None, cancel=CancelToken())
    try:
        choice = choose(model, options)
        backing = Backing(name=choice.name, reason=choice.reason, refused=choice.refused)
    except RunnerError as error:
        backing = _none(error)
    files = tuple((path.name, path.stat().st_size) for path in model.weights)
    return _Found(
        facts=read_facts(model),
        directory=model.directory,
        backing=backing,
        files=files,
        download_bytes=0,
        listed={},
        model=model,
    )


def _none(error: RunnerError) -> Backing:
    return Backing(name=None, reason=f"{error.message} {error.hint}".strip())


# --- on the hub ------------------------------------------------------------------------------------------------------


def _on_the_hub(
    spec: ModelSpec, options: LoadOptions, listing: hub.Listing, choice: Choice, cancel: CancelToken
) -> _Found:
    repo, revision = spec.source
    start = b""
    sizes = {file.name: file.size_bytes for file in listing.files}
    here = next((set(one.names) for one in snapshots(repo, revision) if one.commit == listing.commit), set[str]())
    model = ReadyModel(name=title(spec), format=choice.format, weights=(), directory=Path(repo), size_bytes=0)
    with hub.RemoteReader(listing, cancel=cancel) as reader:
        if choice.format == "gguf":
            headers, starts = zip(*(gguf_header(reader, listing.file(name)) for name in choice.weights), strict=True)
            facts, start = gguf_facts(headers), starts[0]
            model = replace(model, architecture=facts.shape.architecture)
            backing = _backing(model, options, "llamacpp", None)
        else:
            config = json_object(reader, listing.file(CONFIG))
            facts = _safetensors_facts(reader, listing, choice, config)
            backing = _backing(model, options, "native", _native_refusal(config))
    is_for_both = options.backend == "auto" and choice.format == "gguf" and CONFIG in choice.side
    return _Found(
        facts=facts,
        directory=Path(repo),
        backing=backing,
        files=tuple((name, sizes[name]) for name in choice.names),
        download_bytes=sum(sizes[name] for name in choice.names if name not in here),
        listed=sizes,
        model=None,
        listing=listing,
        start=start,
        is_sure=not (is_for_both and (backing.name is None or gpu_for_kernels() is not None)),
    )


def _safetensors_facts(
    reader: hub.RemoteReader, listing: hub.Listing, choice: Choice, config: Mapping[str, Any]
) -> ModelFacts:
    """The first shard tells the type of the weights; all of them are read when there are few."""
    files = [listing.file(name) for name in choice.weights]
    read = files if len(files) <= MAX_HEADERS else files[:1]
    tensors = [tensor for file in read for tensor in safetensors_header(reader, file).values()]
    manifest = json_object(reader, listing.file(MANIFEST_NAME)) if choice.format == "packed" else None
    size = None if len(read) == len(files) else sum(file.size_bytes for file in files)
    return safetensors_facts(config, tensors, manifest, size_bytes=size)


def _native_refusal(config: Mapping[str, Any]) -> str | None:
    """Why the native backend would not run a model with that config.json, or None."""
    try:
        parse_model_config(config)
    except RunnerError as error:
        return f"{error.message} {error.hint}".strip()
    return None


def _backing(model: ReadyModel, options: LoadOptions, best: BackendName, refusal: str | None) -> Backing:
    """Which backend would run files that are not here yet; `best` is the one for their format.

    refusal: why native would not, as far as config.json tells: it cannot look into the files themselves.
    """
    name: BackendName = best if options.backend == "auto" else options.backend
    why = f"the one for {model.format} files" if options.backend == "auto" else "it was asked for"
    if name == "native":
        reason = refusal
    else:
        reason = backend_module(name).refusal(model, options)
    return Backing(name=None, reason=f"{name}: {reason}") if reason else Backing(name=name, reason=why)
