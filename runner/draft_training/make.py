"""Makes a head: the target writes, the head learns, what it is worth is measured, and the directory gets its name.

Everything is written into "<output>.partial": a run that was stopped goes on there with the same text, from the last
checkpoint. It knows the order of the work and how it is kept; the work itself is the other files'.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from runner.backends.native.blocks import Decoder
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_files import save_eagle3
from runner.backends.native.placement import is_out_of_memory
from runner.backends.native.writing import batch_size
from runner.draft_training import corpus as texts_of
from runner.draft_training.checkpoint import (
    CHECKPOINT_NAME,
    WRITING_NAME,
    checkpoint_identity,
    load_checkpoint,
    save_checkpoint,
)
from runner.draft_training.corpus import CORPUS_NAME, Corpus, Text, Writer, write_corpus
from runner.draft_training.job import Job, Stage, head_config, text_identity, text_of
from runner.draft_training.measure import Measured, conditions, measured
from runner.draft_training.report import REPORT_NAME, Ended, Report, TextFacts, report_json
from runner.draft_training.settings import TrainingSettings
from runner.draft_training.states import training_dtype
from runner.draft_training.train import Material, Trained, Training, commonest, new_head
from runner.errors import DoesNotFit, RunnerError, UnsupportedModel, UsageError
from runner.model_files import CONFIG
from runner.quant.file_records import files_json, record_of
from runner.quant.packed_files import MANIFEST_NAME, WEIGHTS_NAME
from runner.quant.work_directory import Parts, WorkDirectory, sync
from runner.types import CancelToken, Message
from runner.wire import to_plain

_WATCHED_NAME: Final = "watched.jsonl"
_FINISHED: Final = (WEIGHTS_NAME, CONFIG, REPORT_NAME, CORPUS_NAME)
DRAFT_PARTS: Final = Parts(
    names=frozenset({*_FINISHED, MANIFEST_NAME, _WATCHED_NAME, CHECKPOINT_NAME, WRITING_NAME}),
    signs=frozenset({REPORT_NAME}),
    spent=frozenset({_WATCHED_NAME, CHECKPOINT_NAME, WRITING_NAME}),
)
_WRITING_SHARE: Final = 0.3  # of a limit of time, at most
_ALL_WRITING_SHARE: Final = 0.4  # with the text to watch by
_MEASURING_SHARE: Final = 0.15
_WATCHED_SHARE: Final = 0.05  # of the tokens to train on
_BYTES_PER_TOKEN: Final = 8  # of the text's file, about
_N_LONG: Final = 8


def train_draft(
    job: Job, on_stage: Callable[[Stage], None], on_note: Callable[[str], None], cancel: CancelToken
) -> Report:
    """Make the head in job.output.

    Raises UsageError when it is there without `force`, when none of the prompts can be asked, or when a stopped run
    left a text there that is not this one's; DoesNotFit for memory or disk, BusyError when another process is making
    it, RunnerError when cancelled. After a cancel, a KeyboardInterrupt or a kill the same call goes on.
    """
    work = WorkDirectory(job.output, DRAFT_PARTS)
    if work.is_file:
        raise UsageError(f"{job.output} would be one file, and a head is a directory.", hint="Leave the suffix out.")
    work.check_target(force=job.force)
    config = head_config(job)
    with torch.device("meta"):
        head_size = sum(parameter.numel() for parameter in Eagle3Head(config).parameters())
    made_from = text_of(job)
    asked = _Asked(train=_asked(job, job.prompts.train), watch=_asked(job, job.prompts.watch))
    with work.opened(resumes=True), _memory_errors(job.device):
        # The head, its best form and two moments in four bytes, twice while a checkpoint is replaced; and the result.
        work.require_room(34 * head_size + _BYTES_PER_TOKEN * job.settings.n_tokens, there_bytes=_held_bytes(work.path))
        if not (work.path / REPORT_NAME).is_file():
            (work.path / REPORT_NAME).write_text("{}\n")  # says whose files these are
        _take_up_text(job, work.path, made_from)
        report = _Making(job, work.path, made_from, asked, on_stage, on_note, cancel).run(20 * head_size)
        work.write_manifest(files_json({name: record_of(work.path / name) for name in _FINISHED}))
        work.place()
    return report


def _take_up_text(job: Job, path: Path, made_from: Mapping[str, Any]) -> None:
    """Copy the text of another head where it is to serve. Raises UsageError where that of a stopped run would go."""
    copied, own = None if job.text_from is None else job.text_from / CORPUS_NAME, path / CORPUS_NAME
    if texts_of.would_lose(own, made_from, copied):
        others = "--corpus would replace" if copied is not None else "had another model, --prompts, --seed or --corpus"
        raise UsageError(
            f"{path} has the text of a run that was stopped, which {others}.",
            hint="The command as it was given then goes on with it; another -o keeps both; or delete that directory.",
        )
    if copied is not None and not (own.is_file() and copied.samefile(own)):
        shutil.copyfile(copied, own)


class _Asked(NamedTuple):
    """What the target is asked, as ids: of the texts to train on, and of those to watch by."""

    train: Sequence[Sequence[int]]
    watch: Sequence[Sequence[int]]


def _asked(job: Job, prompts: Sequence[str]) -> Sequence[Sequence[int]]:
    """The ids of the prompts that leave room for an answer. Raises UsageError where none does."""
    length = job.settings.length
    asked = [ids for prompt in prompts if (ids := job.target.chats.ids([Message(role="user", content=prompt)]))]
    if not asked:
        raise UsageError("The model's chat template takes none of the prompts.", hint="Give others with --prompts.")
    fitting = [ids for ids in asked if len(ids) < length]
    if not fitting:
        raise UsageError(f"No prompt leaves room for an answer in {length} tokens.", hint="Give shorter prompts.")
    return fitting


class _Making:
    """One run, in the directory where it is made."""

    def __init__(
        self,
        job: Job,
        path: Path,
        made_from: Mapping[str, Any],
        asked: _Asked,
        on_stage: Callable[[Stage], None],
        on_note: Callable[[str], None],
        cancel: CancelToken,
    ) -> None:
        self._job = job
        self._path = path
        self._made_from = made_from
        self._asked = asked
        self._on_stage = on_stage
        self._on_note = on_note
        self._cancel = cancel
        self._began = time.monotonic()
        self._goes_on = False  # with the steps of an earlier run, whose text is not to grow then

    def run(self, spare_bytes: int) -> Report:
        job, settings = self._job, self._job.settings
        decoder = self._load(spare_bytes)
        writer = Writer(
            decoder=decoder,
            length=settings.length,
            batch=batch_size(job.target.config, settings.length, job.device),
            used_ids=job.target.used_ids,
            stop_ids=job.target.stop_ids,
        )
        train, watch = self._texts(writer)
        written = time.monotonic()
        training = self._trained(decoder, train, watch)
        trained = time.monotonic()
        head = training.head
        save_eagle3(head, self._path)
        results = self._measured(head, writer)
        report = Report(
            target=job.target.name,
            fingerprint=job.target.fingerprint,
            settings=settings,
            text=_facts(train, head, job.prompts.name),
            steps=training.step,
            best_step=training.best_step,
            ended=_ended(training, settings),
            curve=tuple(training.curve),
            measured=results,
            num_parameters=sum(parameter.numel() for parameter in head.parameters()),
            size_bytes=(self._path / WEIGHTS_NAME).stat().st_size,
            device=job.device_name,
            write_s=round(written - self._began, 1),
            training_s=round(trained - written, 1),
        )
        (self._path / REPORT_NAME).write_text(json.dumps(report_json(report), indent=1) + "\n")
        for name in _FINISHED:
            sync(self._path / name)
        return report

    def _load(self, spare_bytes: int) -> Decoder:
        return self._job.target.load(
            self._job.device,
            spare_bytes,
            lambda share: self._on_stage(Stage(name="loading", done=round(100 * share), total=100)),
        )

    def _texts(self, writer: Writer) -> tuple[list[Text], list[Text]]:
        """What is trained on, and what is watched."""
        job, settings = self._job, self._job.settings
        watch_tokens = max(1, round(settings.n_tokens * _WATCHED_SHARE))
        asked, to_watch = self._asked
        train = self._written(
            writer, CORPUS_NAME, self._made_from, asked, settings.n_tokens, "writing text", _WRITING_SHARE
        )
        own, stage = {**text_identity(job), "watched": True}, "writing text to watch by"
        watch = self._written(writer, _WATCHED_NAME, own, to_watch, watch_tokens, stage, _ALL_WRITING_SHARE)
        return train, watch

    def _written(
        self,
        writer: Writer,
        name: str,
        made_from: Mapping[str, Any],
        asked: Sequence[Sequence[int]],
        n_tokens: int,
        stage: str,
        time_share: float,
    ) -> list[Text]:
        """time_share: of a limit of time; what is written by then has to do."""
        job = self._job
        most = 0  # of a batch not all that is written is kept, which is known at its end

        def on_tokens(done: int) -> None:
            nonlocal most
            if self._cancel.is_cancelled:
                raise RunnerError("Training was stopped.")
            most = max(most, min(done, n_tokens))
            self._on_stage(Stage(name=stage, done=most, total=n_tokens))

        with (
            texts_of.opened(self._path / name, made_from, job.target.config.vocab_size) as corpus,
            torch.inference_mode(),
        ):
            on_tokens(corpus.n_tokens)
            if name == CORPUS_NAME:
                self._goes_on = job.time_limit_s is not None and self._has_steps_for(corpus)
            if job.text_from is None or name != CORPUS_NAME:
                hurried = replace(
                    writer,
                    batch=_at_once(writer, n_tokens, job.device),
                    is_over=lambda: self._goes_on or self._time_share() > time_share,
                )
                write_corpus(corpus, hurried, asked, n_tokens, job.settings.seed, on_tokens=on_tokens)
            found = _answers(corpus, n_tokens)
        if not found:
            raise UnsupportedModel(
                f"{job.target.name} ends its answers at once: there is nothing to learn to draft.",
                hint="Give other prompts with --prompts; a base model may need the beginning of a text.",
            )
        return found

    def _has_steps_for(self, corpus: Corpus) -> bool:
        """Whether an earlier run has begun to train on just this text."""
        found = _answers(corpus, self._job.settings.n_tokens)
        return checkpoint_identity(self._path) == self._identity(len(found))

    def _identity(self, n_answers: int) -> str:
        """Of all that a step of training depends on."""
        job = self._job
        return _digest(
            {
                "settings": to_plain(job.settings),
                "text": self._made_from,
                "device": job.device.type,
                "answers": n_answers,
            }
        )

    def _trained(self, decoder: Decoder, train: list[Text], watch: list[Text]) -> Training:
        job, settings = self._job, self._job.settings
        ids = commonest(train, settings.draft_vocab_size, job.target.config.vocab_size)
        head = Eagle3Head(head_config(job))
        head = new_head(head, decoder, ids, settings.seed).to(device=job.device, dtype=training_dtype(job.device))
        identity = self._identity(len(train))
        begun = load_checkpoint(self._path, identity, {name: p.shape for name, p in head.named_parameters()})
        if begun is not None:
            self._on_note(f"Going on after step {begun.step} of {settings.steps}.")
        elif (self._path / CHECKPOINT_NAME).is_file():
            self._on_note(
                "The settings are not those of the run that was stopped: its text serves again, its steps do not."
            )
        training = Training(head, Material(decoder, settings, train, watch, self._training_share()), begun)

        def save() -> None:
            save_checkpoint(self._path, training.checkpoint(), identity)

        def on_step(done: Trained) -> None:
            length = {} if done.acceptance_length is None else {"acceptance_length": round(done.acceptance_length, 3)}
            self._on_stage(
                Stage(
                    name="training",
                    done=done.step,
                    total=settings.steps,
                    figures={"loss": round(done.loss, 3), **length},
                )
            )

        if not training.run(on_step, save, self._cancel):
            save()
            raise RunnerError("Training was stopped.")
        if not training.curve:
            raise UsageError(
                "There was no time for a step of training.",
                hint="Give a longer --time-limit; -t 1 is faster where other programs keep the processor busy.",
            )
        training.finish()
        return training

    def _measured(self, head: Eagle3Head, writer: Writer) -> tuple[Measured, ...]:
        """Under every condition, or under those that there is time for, the usual one at least."""
        job, settings = self._job, self._job.settings
        # Long is what training never saw: four times its texts, as far as the model reads.
        long_tokens = min(4 * settings.length, job.target.config.max_position_embeddings - 2 * settings.length)

        def on_text(done: int, total: int) -> None:
            if self._cancel.is_cancelled:
                raise RunnerError("Training was stopped.")
            self._on_stage(Stage(name="measuring", done=done, total=total))

        hurried, found = replace(writer, is_over=lambda: self._time_share() > 1), list[Measured]()
        with torch.inference_mode():
            for condition in conditions(
                job.target.chats, hurried, job.prompts.measure, max(0, long_tokens), _N_LONG, on_text
            ):
                found.append(measured(head, writer.decoder, condition, settings.depth, settings.batch_tokens))
                if hurried.is_over():
                    break
        return tuple(found)

    def _time_share(self) -> float:
        limit = self._job.time_limit_s
        return 0.0 if limit is None else (time.monotonic() - self._began) / limit

    def _training_share(self) -> Callable[[], float]:
        """How much of the time for training is over."""
        if self._job.time_limit_s is None:
            return lambda: 0.0
        first = self._time_share()
        return lambda: (self._time_share() - first) / max(1e-9, 1 - _MEASURING_SHARE - first)


def _at_once(writer: Writer, n_tokens: int, device: torch.device) -> int:
    """How many answers are written at once: of those that nobody asked for, each costs a processor time, a GPU none."""
    return min(writer.batch, -(-n_tokens // writer.length)) if device.type == "cpu" else writer.batch


def _answers(corpus: Corpus, n_tokens: int) -> list[Text]:
    """As much of the text as is trained on: answers that do not end at once."""
    return [text for text in corpus.first(n_tokens) if text.n_answer > 1]


def _facts(train: Sequence[Text], head: Eagle3Head, prompts: str) -> TextFacts:
    ids = torch.tensor([token for text in train for token in text.ids[text.n_prompt :]])
    coverage = float(head.t2d.cpu()[ids].float().mean())
    return TextFacts(prompts=prompts, answers=len(train), tokens=len(ids), coverage=round(coverage, 4))


def _ended(training: Training, settings: TrainingSettings) -> Ended:
    if training.step >= settings.steps:
        return "all steps"
    return "no better any more" if training.is_stuck else "time limit"


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _held_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.iterdir() if entry.is_file())


@contextmanager
def _memory_errors(device: torch.device) -> Iterator[None]:
    """Turns a failed allocation into DoesNotFit."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RunnerError) or not is_out_of_memory(error):
            raise
        raise DoesNotFit(
            f"Training ran out of memory ({device.type}).",
            hint="Give a smaller --draft-vocab or --depth; the text that was written is kept.",
        ) from error
