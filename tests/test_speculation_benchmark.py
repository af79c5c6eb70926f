"""What benchmarks/speculation.py computes around its measurements, and the program itself on a few prompts."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import page
import pytest
import speculation_adversity
import speculation_early
import speculation_overhead
from both_ways import Found, eager, scripted
from prompt_files import FilePrompt, read_prompts
from scripted_drafts import Guess, ScriptedDrafter, adversaries, suffix_script

from runner.backends.fake import FakeTokenizer
from runner.bench.genre_meter import Pair
from runner.bench.request import GENRES
from runner.config import LONGEST_DRAFT, SamplingParams
from runner.speculative.record import SpeculationRecord
from runner.telemetry import Timings
from tests.backends.native import tiny_models
from tests.bench.test_bench_plan import info

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "speculation.py"
GREEDY = SamplingParams(temperature=0)


class Open:
    def admits(self, _bucket: int) -> bool:
        return True


def test_a_scripted_drafter_is_as_right_as_its_script_says() -> None:
    drafter = ScriptedDrafter(lambda done: Guess((2, 1, 0, 0), n_right=done), 3, vocab_size=10)
    drafter.follow([5, 6, 7, 8, 9], n_prompt=2)
    draft = drafter.propose([0, 0, 5, 6], GREEDY, Open())
    assert draft.tokens[:3] == (7, 8, 0)  # two right, then 9 + 1 in a vocabulary of ten
    assert draft.buckets == (2, 1, 0, 0)
    beyond = drafter.propose([0, 0, 5, 6, 7, 8, 9], GREEDY, Open())
    assert len(beyond) == 4


def test_no_adversary_proposes_more_than_is_ever_verified() -> None:
    for one in adversaries():
        guesses = [one.script(done) for done in range(300)]
        assert all(0 <= guess.n_right <= LONGEST_DRAFT >= len(guess.buckets) for guess in guesses)
        assert max(bucket for guess in guesses for bucket in guess.buckets) < one.n_buckets


def test_drafts_of_scripts_and_eager_ones_are_no_longer_than_the_model_can_take_back(tmp_path: Path) -> None:
    backend = tiny_models.load(tiny_models.ready(tiny_models.save(tiny_models.make("qwen3-5"), tmp_path)))
    drafting = scripted(backend, ScriptedDrafter(lambda _done: Guess((0,) * LONGEST_DRAFT, 1), 1, vocab_size=10))
    for one in (drafting, eager(drafting)):
        assert one.speculator is not None
        assert one.speculator.draft_max == backend.info.longest_draft < LONGEST_DRAFT
    backend.close()


def test_real_code_is_guessed_better_than_real_prose() -> None:
    shares = {}
    for genre in GENRES:
        script, n = suffix_script(genre, info(), FakeTokenizer())
        shares[genre] = sum(script(done).n_right > 0 for done in range(1, n + 1)) / n
    assert shares["code"] > 2 * shares["prose"]


def test_prompts_are_read_as_public_sets_have_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "How?"}\n\n{"category": "math", "turns": ["1 + 1", "2 + 2"]}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"task_id": 1, "prompt": "def f():"}\n'))
    assert list(read_prompts(tmp_path)) == [
        FilePrompt(category="a", text="How?", continues=False),
        FilePrompt(category="math", text="1 + 1", continues=False),
        FilePrompt(category="b", text="def f():", continues=True),
    ]
    for text in (
        '{"answer": 5}\n',
        '{"prompt": 5}\n',
        '{"prompt": ""}\n',
        '{"turns": 5}\n',
        '{"turns": []}\n',
        "{\n",
        "[1]\n",
    ):
        (tmp_path / "c.jsonl").write_text(text)
        with pytest.raises(ValueError, match=r"c\.jsonl, line 1: no "):
            list(read_prompts(tmp_path))
    (tmp_path / "c.jsonl").unlink()
    (tmp_path / "c.jsonl.gz").write_bytes(b"\x1f\x8bno archive")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="cannot be read"):
            list(read_prompts(path))


def test_lines_of_prompts_end_where_json_says(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\x0bfour"
    lines = "".join(json.dumps({"question": text}, ensure_ascii=False) + end for end in ("\r\n", "\n"))
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert [prompt.text for prompt in read_prompts(tmp_path / "a.jsonl")] == [text, text]


def pair(plain: tuple[int, ...], drafted: tuple[int, ...]) -> Pair:
    timed = [
        (Timings(completion_tokens=len(ids), decode_s=seconds), ids) for ids, seconds in ((plain, 2.0), (drafted, 1.0))
    ]
    record = SpeculationRecord(
        drafter="scripted", state="on", rounds=1, drafted_at=(1,), reached_at=(1,), accepted_at=(1,)
    )
    return Pair(plain=timed[0], speculative=timed[1], record=record)


def test_answers_that_differ_are_counted() -> None:
    found = Found()
    found.add([pair((1, 2, 3), (1, 2, 3)), pair((1, 2, 3), (1, 2, 4))])
    row = found.row(kind="gain")
    assert (row["n_answers"], row["n_different"]) == (2, 1)
    assert (row["gain"], row["acceptance_rate"]) == (2.0, 1.0)


def test_repetitions_by_the_processors_time_are_a_gain_of_their_own() -> None:
    found = Found()
    found.add([pair((1, 2, 3), (1, 2, 3))])
    found.add([pair((1, 2, 3), (1, 2, 3))] * 2, is_processor_time=True)
    row = found.row(kind="worst")
    assert (row["gains"], row["processor_gains"]) == ([2.0], [2.0])
    assert (row["processor_gain"], row["n_answers"]) == (2.0, 3)


def test_the_program_compares_both_ways_on_a_file_and_the_page_shows_it(tmp_path: Path) -> None:
    prompts, out = tmp_path / "few.jsonl", tmp_path / "rows.jsonl"
    novel = "It was a bright cold day in April, and the old man sat at the window. "
    lines = ({"question": "word " * 4000, "category": "long"}, {"question": "Tell me a story."}, {"prompt": novel})
    prompts.write_text("\n".join(map(json.dumps, lines)))
    asked = ["prompts", str(prompts), "--eager", "--tokens", "80", "-t", "1", "--json", str(out), "--commit", "abc"]
    done = subprocess.run([sys.executable, str(PROGRAM), *asked], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "left out: The message has" in done.stderr
    greedy, sampled = rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert (greedy["temperature"], sampled["temperature"]) == (0.0, 0.7)
    assert [row["n_different"] for row in rows] == [0, 0]
    assert greedy["rounds"] > 0
    text = page.section("speculation", page.read_rows(out))
    assert "Prompts that are not part of the project" in text
    assert "| demo (llamacpp) | suffix, eager, few | 0.7 |" in text


@pytest.mark.parametrize(("line", "words"), [("", "there is no prompt in"), ("word " * 4000, "nothing was compared")])
def test_a_file_of_which_nothing_can_be_compared_fails(tmp_path: Path, line: str, words: str) -> None:
    prompts = tmp_path / "few.jsonl"
    prompts.write_text(json.dumps({"prompt": line}) if line else "\n")
    asked = [sys.executable, str(PROGRAM), "prompts", str(prompts), "--commit", "abc"]
    done = subprocess.run(asked, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1
    assert words in done.stderr


def test_the_program_of_random_machines_counts_what_is_below_the_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speculation_adversity.py", "--machines", "2"])
    monkeypatch.setattr(speculation_adversity, "PROMISED", 2.0)
    speculation_adversity.main()
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if "below 2.0" in line]
    rows = [line for line in lines if line.startswith(tuple(speculation_adversity.SPOILS))]
    assert len(heads) == 2, "machines whose steps are waited for, and those whose plain steps begin early"
    assert len(rows) == 2 * len(speculation_adversity.SPOILS)
    for row in rows:
        n_answers, _worst, n_below, _mean = row.split()[-4:]
        assert int(n_answers) >= 2
        assert n_below == n_answers, "no random answer is twice as fast"


def test_the_program_of_looks_tells_those_that_were_taken_from_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--history", "64", "--tokens", "300", "--step-ms", "100"]
    monkeypatch.setattr(sys, "argv", ["speculation_overhead.py", *sizes])
    speculation_overhead.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "ms", "drafter", "history", "look", "other", "all", "asked"]
    looks, stride, loops = rows[:3], rows[3], rows[4:]
    assert all(float(row.split()[-2]) > 0 for row in looks)
    nothing, random_text, wrong = (float(row.split()[-1].rstrip("%")) for row in looks)
    assert nothing > 90, "a step of 100 ms pays for a look at each token"
    assert random_text == 0, "nothing can be quoted"
    assert 30 < wrong <= 40, "two tokens of five repeat something"
    drafted, plain, _every = map(float, stride.split()[-3:])
    assert 0 < plain < drafted, "learning of a draft takes longer"
    assert [float(row.split()[-1]) > 0 for row in loops] == [True, True]


def test_the_program_with_a_real_clock_writes_each_text_with_and_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--step-us", "500", "--answers", "2", "--tokens", "60"]
    monkeypatch.setattr(sys, "argv", ["speculation_early.py", *sizes])
    speculation_early.main()
    _, _, *rows = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    names = ("repeats", "half of it repeats", "random")
    assert [row[:3] for row in cells] == [["500", drafts, name] for drafts in ("device", "host") for name in names]
    for row in cells:
        assert all(0 < float(gain) < math.inf for gain in row[3].split())
        assert len(row[4].split()) == 2
    assert "0" in cells[5][4].split(), "nothing can be guessed of a text at random that is new"


def test_the_program_with_a_real_clock_writes_the_texts_of_genres_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speculation_early, "GENRES", ("code",))
    monkeypatch.setattr(sys, "argv", ["speculation_early.py", "--genres", "--step-us", "200", "--answers", "1"])
    speculation_early.main()
    _, _, *rows = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[:3] for row in cells] == [["200", drafts, "code"] for drafts in ("device", "host")]
    assert all(0 < float(row[3]) < math.inf for row in cells)
    assert int(cells[0][4]) > 10, "steps draft by themselves"
