"""Detokenizing, stop strings and the reasoning split: the same text, whatever pieces the stream comes in."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from runner.detokenize import (
    AnswerPiece,
    AnswerStream,
    Detokenizer,
    ReasoningSplitter,
    StopMatcher,
    joined_pieces,
)
from runner.detokenize.drafted import joined
from runner.templates import reasoning_markers
from runner.types import ReasoningMarkers
from tests.byte_tokenizer import ByteTokenizer as TextTokenizer


def markers_of(template: str) -> ReasoningMarkers:
    markers = reasoning_markers(template)
    assert markers is not None
    return markers


THINK = markers_of("<think></think>")
HARMONY = markers_of("<|start|>assistant<|channel|>analysis<|message|>")
GEMMA = markers_of("<|channel>thought\n<channel|>")
MAGISTRAL = markers_of("[THINK][/THINK]")


class ByteTokenizer:
    """A token a byte, and control tokens above them, as in byte-level vocabularies."""

    add_bos = False
    bos_id = None
    stop_ids: frozenset[int] = frozenset()
    strips_leading_space = False

    def __init__(self, control_tokens: Sequence[str] = ()) -> None:
        self.control_tokens = frozenset(control_tokens)
        self._names = list(control_tokens)
        self.vocab_size = 256 + len(self._names)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            name = next((name for name in self._names if parse_special and text.startswith(name)), None)
            ids += [256 + self._names.index(name)] if name else text[0].encode()
            text = text[len(name or text[0]) :]
        return ids

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return self._names[token - 256].encode() if special else b""


def splits(text: str, n_cuts: int) -> Iterator[list[str]]:
    """`text` cut at every choice of `n_cuts` places."""
    for cuts in itertools.combinations(range(len(text) + 1), n_cuts):
        yield [text[a:b] for a, b in itertools.pairwise((0, *cuts, len(text)))]


def decoded(pieces: Sequence[bytes], *, strips_leading_space: bool = False) -> str:
    detokenizer = Detokenizer(lambda token: pieces[token], strips_leading_space)
    return "".join(detokenizer.push(token) for token in range(len(pieces))) + detokenizer.flush()


def matched(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown, is_hit = "", False
    for piece in pieces:
        text, is_hit = matcher.push(piece)
        shown += text
    return shown + matcher.flush(), is_hit


def split(pieces: Sequence[str], markers: ReasoningMarkers, *, starts_inside: bool = False) -> tuple[str, str]:
    """(thought, answer)"""
    splitter = ReasoningSplitter(markers, starts_inside)
    out = [part for piece in pieces for part in splitter.push(piece)] + splitter.flush()
    assert all(part.text for part in out)
    return tuple("".join(part.text for part in out if part.kind == kind) for kind in ("reasoning", "text"))  # type: ignore[return-value]


# --- UTF-8 ---


@pytest.mark.parametrize(
    "data",
    [
        "naïve café".encode(),
        "中文日本語".encode(),
        "👨‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈".encode(),
        b"\xff\xfe",
        b"a\xf0\x9f\x98",
        b"\xf0\x9fA\x98\x80",
        b"\xe4\xb8\xe4\xb8\xad",
        b"\xed\xa0\x80\xc0\xaf\xf8\x88\x80\x80\x80",
        b"\xf4\x90\x80\x80 \x80\x80",
    ],
)
def test_every_split_of_bytes_gives_the_text_of_the_whole(data: bytes) -> None:
    whole = data.decode("utf-8", "replace")
    for n_cuts in (1, 2):
        for cuts in itertools.combinations(range(len(data) + 1), n_cuts):
            assert decoded([data[a:b] for a, b in itertools.pairwise((0, *cuts, len(data)))]) == whole
    assert decoded([bytes([byte]) for byte in data]) == whole


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_any_bytes_in_any_pieces_decode_as_at_once(pieces: list[bytes]) -> None:
    assert decoded(pieces) == b"".join(pieces).decode("utf-8", "replace")


def test_an_unfinished_character_is_not_shown_until_it_is_complete() -> None:
    detokenizer = Detokenizer(lambda token: [b"\xf0\x9f", b"\x98", b"\x80!"][token])
    assert [detokenizer.push(token) for token in (0, 1, 2)] == ["", "", "😀!"]
    assert detokenizer.flush() == ""


def test_a_character_that_never_becomes_complete_is_a_replacement_character_at_the_end() -> None:
    assert decoded([b"a", b"\xf0\x9f"]) == "a\ufffd"


def test_one_leading_space_is_dropped_at_the_start_only() -> None:
    assert decoded([b"", b"  Lima", b" is", b" it"], strips_leading_space=True) == " Lima is it"
    assert decoded([b" ", b" a"], strips_leading_space=True) == " a"
    assert decoded(["\u4e2d".encode()[:2], "\u4e2d".encode()[2:], b" x"], strips_leading_space=True) == "中 x"
    assert decoded([b" Lima"]) == " Lima"


def test_a_real_vocabulary_gives_back_the_text_token_by_token(shared_data: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(shared_data / "tokenizers" / "qwen3" / "tokenizer.json"))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}
    text = "Ünïcödé 中文 👨‍👩‍👧‍👦 🏳️‍🌈\n\tfin 𓀀 ᚠᛇᚻ"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = [bytes(byte_of[char] for char in tokenizer.id_to_token(token)) for token in ids]
    assert any(b"\xf0" in piece and len(piece) < 4 for piece in pieces), "no character was split over tokens"
    assert decoded(pieces) == text


# --- stop strings ---


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("one ### two", ["###"], "one "),
        ("one ## two", ["###"], "one ## two"),
        ("one ##", ["###"], "one ##"),
        ("aaab", ["aab"], "a"),
        ("ababac", ["abac"], "ab"),
        ("User: hi\nUser: bye", ["\nUser:"], "User: hi"),
        ("x</s>y", ["</s>", "</"], "x"),
        ("xabcd", ["bcd", "abcd"], "x"),
        ("xabc", ["ab", "xabc"], "x"),
        ("你好。再见", ["。再"], "你好"),
        ("👋🏽 stop", ["🏽 s"], "👋"),
        ("stop", ["stop"], ""),
        ("no stops", [], "no stops"),
        ("", ["a"], ""),
    ],
)
def test_every_split_ends_at_the_same_stop_string(text: str, stops: list[str], shown: str) -> None:
    is_hit = shown != text
    for pieces in itertools.chain(splits(text, 1), splits(text, 2), [list(text)]):
        assert matched(pieces, stops) == (shown, is_hit)


@given(
    st.lists(st.text(alphabet="ab<", max_size=4), max_size=8),
    st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), max_size=3),
)
def test_any_pieces_end_where_the_whole_does_and_show_no_stop_string(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    shown, is_hit = matched(pieces, stops)
    assert (shown, is_hit) == matched([whole], stops)
    assert is_hit == any(stop in whole for stop in stops)
    assert whole.startswith(shown)
    assert is_hit or shown == whole
    assert not any(stop in shown for stop in stops)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["<end>", "\n\n"])
    assert matcher.push("text\n") == ("text", False)
    assert matcher.push("more <e") == ("\nmore ", False)
    assert matcher.push("l") == ("<el", False)
    assert matcher.push("<end>tail") == ("", True)
    assert matcher.push("nothing after it") == ("", True)
    assert matcher.flush() == ""


# --- reasoning ---

CASES = [
    (THINK, "<think>\nhm\n</think>\n\nLima.", False, "hm", "Lima."),
    (THINK, "\n <think>a < b\n\n c</think>yes", False, "a < b\n\n c", "yes"),
    (THINK, "hm, so\n</think>\n\nLima.", True, "hm, so", "Lima."),
    (THINK, "<think>\n\n</think>\n\nLima.", False, "", "Lima."),
    (THINK, "<think>never done </thin", False, "never done </thin", ""),
    (THINK, "Lima.", False, "", "Lima."),
    (THINK, "  indented\n", False, "", "  indented\n"),
    (THINK, "Use `<think>x</think>`.", False, "", "Use `<think>x</think>`."),
    (THINK, "<think>a</think>b <think>c</think>", False, "a", "b <think>c</think>"),
    (THINK, "<thi", False, "", "<thi"),
    (THINK, "", False, "", ""),
    (THINK, "<think>a</think>\n\n    code", False, "a", "    code"),
    (MAGISTRAL, "[THINK]why[/THINK]because", False, "why", "because"),
    (GEMMA, "<|channel>thought\nwell\n<channel|>Lima.", False, "well", "Lima."),
    (GEMMA, "<|channel>thought\n<channel|>Lima.", False, "", "Lima."),
    (
        HARMONY,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Lima.",
        False,
        "hm",
        "Lima.",
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Lima.",
        False,
        "a\n\nb",
        "Let me look.\n\nLima.",
    ),
    (HARMONY, "hm<|end|><|start|>assistant<|channel|>final<|message|>Lima.", True, "hm", "Lima."),
    (HARMONY, "<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>L", False, "hm", "L"),
    (HARMONY, "<|channel|>final<|message|>say <|end|> or <|channel|>", False, "", "say <|end|> or <|channel|>"),
    (
        HARMONY,
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
        False,
        "",
        "{}",
    ),
    (HARMONY, "No channels at all.", False, "", "No channels at all."),
    (HARMONY, "<|channel|>analy", False, "", ""),
    (HARMONY, "<", False, "", "<"),
    (HARMONY, "<|channel|>" + "x" * 500, False, "", "<|channel|>" + "x" * 500),
    (HARMONY, "<|start|>" + "x" * 500 + "<|message|>", False, "", "<|start|>" + "x" * 500 + "<|message|>"),
    (HARMONY, "<|channel|>analysis<|message|>cut <|en", False, "cut <|en", ""),
    (HARMONY, " \n", False, "", " \n"),
    (HARMONY, "<|channel|>commentary<|message|>one<|end|>two", False, "", "one\n\ntwo"),
]


@pytest.mark.parametrize(("markers", "text", "starts_inside", "thought", "answer"), CASES)
def test_every_split_tells_thought_from_answer_alike(
    markers: ReasoningMarkers, text: str, starts_inside: bool, thought: str, answer: str
) -> None:
    assert split([text], markers, starts_inside=starts_inside) == (thought, answer)
    assert split(list(text), markers, starts_inside=starts_inside) == (thought, answer)
    for pieces in splits(text, 1):
        assert split(pieces, markers, starts_inside=starts_inside) == (thought, answer)
    for pieces in itertools.islice(splits(text, 2), 0, None, 7):
        assert split(pieces, markers, starts_inside=starts_inside) == (thought, answer)


PARTS = [
    "<think>",
    "</think>",
    "<|channel|>",
    "analysis",
    "final",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<",
    "x",
    "\n",
]


@given(st.lists(st.sampled_from([*PARTS, " ", "commentary", "a b"]), max_size=14), st.data())
def test_any_stream_splits_alike_in_any_pieces(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in itertools.pairwise((0, *cuts, len(text)))]
    for markers, starts_inside in itertools.product((THINK, HARMONY), (False, True)):
        expected = split([text], markers, starts_inside=starts_inside)
        assert split(pieces, markers, starts_inside=starts_inside) == expected


@given(st.text(max_size=30).filter(lambda text: not text.lstrip().startswith(("<", "[", "\ufeff"))))
def test_an_answer_without_a_thought_is_untouched(text: str) -> None:
    for markers in (THINK, HARMONY, GEMMA, MAGISTRAL):
        assert split(list(text), markers) == ("", text)


def test_a_thought_that_ends_in_endless_newlines_is_shown_while_it_goes_on() -> None:
    splitter = ReasoningSplitter(THINK, starts_inside=True)
    shown = "".join(part.text for _ in range(500) for part in splitter.push("a\n" if _ == 0 else "\n"))
    assert 400 < len(shown) < 500
    assert shown + "".join(part.text for part in splitter.flush()) == "a" + "\n" * 500


def test_reasoning_is_reported_while_it_lasts() -> None:
    splitter = ReasoningSplitter(THINK)
    states = []
    for piece in ("<think>", "hm", "</thi", "nk>", "answer"):
        splitter.push(piece)
        states.append((splitter.is_in_reasoning, splitter.is_in_answer))
    assert states == [(True, False)] * 3 + [(False, True)] * 2


# --- the whole stream ---


def streamed(stream: AnswerStream, ids: Sequence[int]) -> tuple[str, str]:
    out = [piece for token in ids for piece in stream.push(token)]
    out += stream.finish()
    return tuple("".join(piece.text for piece in out if piece.kind == kind) for kind in ("reasoning", "text"))  # type: ignore[return-value]


def test_a_stop_string_ends_the_answer_and_not_the_thought() -> None:
    tokenizer = ByteTokenizer()
    stream = AnswerStream(tokenizer, stops=["\n\n", "END"], markers=THINK)
    ids = tokenizer.encode("<think>a\n\nEND b</think>\n\nfirst END rest")
    assert streamed(stream, ids) == ("a\n\nEND b", "first ")
    assert stream.is_finished
    assert stream.push(65) == []


def test_nothing_comes_after_a_stop_string_not_even_a_thought_that_its_token_began() -> None:
    rest = "END<|end|><|channel|>analysis<|message|>more <"
    tokenizer = TextTokenizer(texts=(rest,))
    stream = AnswerStream(tokenizer, stops=["END"], markers=HARMONY)
    assert streamed(stream, tokenizer.encode("<|channel|>commentary<|message|>one " + rest)) == ("", "one ")


def test_markers_that_are_control_tokens_are_read_and_never_shown() -> None:
    names = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>"]
    tokenizer = ByteTokenizer(names)
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Li😀ma<|end|>."
    stream = AnswerStream(tokenizer, markers=HARMONY)
    assert streamed(stream, tokenizer.encode(text)) == ("hm", "Li😀ma.")


def test_a_model_may_write_about_markers_in_its_answer() -> None:
    tokenizer = ByteTokenizer(["<|channel|>", "<|message|>", "<|start|>", "<|end|>"])
    head = tokenizer.encode("<|channel|>final<|message|>")
    body = tokenizer.encode("write <|channel|>analysis<|message|>", parse_special=False)
    assert streamed(AnswerStream(tokenizer, markers=HARMONY), head + body) == (
        "",
        "write <|channel|>analysis<|message|>",
    )


@pytest.mark.parametrize("markers", [THINK, HARMONY, GEMMA, MAGISTRAL])
def test_the_closing_text_ends_the_thought_in_the_stream(markers: ReasoningMarkers) -> None:
    tokenizer = ByteTokenizer(["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "[/THINK]"])
    stream = AnswerStream(tokenizer, markers=markers, is_in_reasoning=True)
    assert stream.is_in_reasoning
    ids = tokenizer.encode("hm") + tokenizer.encode(stream.closing_text) + tokenizer.encode("Lima.")
    assert streamed(stream, ids) == ("hm", "Lima.")
    assert not stream.is_in_reasoning


def test_a_control_token_without_markers_shows_nothing() -> None:
    tokenizer = ByteTokenizer(["<|im_end|>"])
    assert streamed(AnswerStream(tokenizer), tokenizer.encode("a<|im_end|>b")) == ("", "ab")


def test_what_was_held_back_comes_with_the_finish() -> None:
    tokenizer = ByteTokenizer()
    stream = AnswerStream(tokenizer, stops=["###"], markers=THINK)
    assert streamed(stream, [*b"answer ##", 0xF0, 0x9F]) == ("", "answer ##\ufffd")
    assert not stream.is_finished


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "a", "é", "😀", "##", "\n", " "]), max_size=12),
    st.lists(st.sampled_from(["###", "#é", "😀\n", "aa"]), max_size=2),
)
def test_a_stream_of_single_bytes_gives_what_whole_texts_give(parts: list[str], stops: list[str]) -> None:
    thought, answer = split(["".join(parts)], THINK)
    expected = (thought, matched([answer], stops)[0])
    tokenizer = ByteTokenizer()
    stream = AnswerStream(tokenizer, stops=stops, markers=THINK)
    assert streamed(stream, tokenizer.encode("".join(parts))) == expected


def test_the_pieces_have_a_kind_a_text_and_its_drafted_ranges() -> None:
    (piece,) = AnswerStream(ByteTokenizer()).push(65)
    assert piece == AnswerPiece("text", "A") == ("text", "A", ())


def test_what_cannot_open_a_thought_is_shown_at_once_and_line_ends_within_an_answer_stay() -> None:
    assert ReasoningSplitter(THINK).push("Hello") == [AnswerPiece("text", "Hello")]
    splitter = ReasoningSplitter(THINK)
    pieces = [piece for text in ("<think>hm</think>", "\n\n", "a\n", "\n", "b") for piece in splitter.push(text)]
    assert joined_pieces(pieces) == [AnswerPiece("reasoning", "hm"), AnswerPiece("text", "a\n\nb")]


def test_the_beginning_of_a_stop_string_that_never_came_is_shown_at_the_end() -> None:
    for markers in (None, THINK):
        stream = AnswerStream(ByteTokenizer(), stops=["###"], markers=markers)
        pieces = [piece for byte in b"a##" for piece in stream.push(byte)]
        assert joined_pieces([*pieces, *stream.finish()]) == [AnswerPiece("text", "a##")]


# --- drafted characters ---


def drafted_text(stream: AnswerStream, ids: Sequence[int], is_drafted: Sequence[bool]) -> tuple[str, str]:
    """The answer, and a mark for each of its characters: "+" where it was drafted."""
    pieces = [
        piece for token, flag in zip(ids, is_drafted, strict=True) for piece in stream.push(token, is_drafted=flag)
    ]
    text = marks = ""
    for piece in [*pieces, *stream.finish()]:
        if piece.kind == "text":
            text += piece.text
            here = ["-"] * len(piece.text)
            for start, end in piece.drafted:
                assert 0 <= start < end <= len(piece.text)
                here[start:end] = "+" * (end - start)
            marks += "".join(here)
        else:
            assert piece.drafted == ()
    return text, marks


@given(
    st.lists(st.tuples(st.sampled_from(["a", "é", "😀", "##", "#é", "\n", "."]), st.integers(0, 255)), max_size=14),
    st.lists(st.sampled_from(["###", "#é", "😀\n", "aa"]), max_size=2),
)
def test_a_character_is_drafted_when_every_byte_of_it_was(parts: list[tuple[str, int]], stops: list[str]) -> None:
    """Whatever holds it back: the rest of a character, or a stop string that may come."""
    ids, flags, expected = list[int](), list[bool](), ""
    for text, bits in parts:
        for character in text:
            own = [bool(bits >> i & 1) for i in range(len(character.encode()))]
            ids += character.encode()
            flags += own
            expected += "+" if all(own) else "-"
    stream = AnswerStream(ByteTokenizer(), stops=stops, follows_drafts=True)
    text, marks = drafted_text(stream, ids, flags)
    assert marks == expected[: len(text)]


@given(st.text("aé😀", max_size=6), st.lists(st.tuples(st.integers(1, 5), st.booleans())), st.integers(0, 3))
def test_so_it_is_where_tokens_end_and_the_answer_is_cut_within_characters(
    text: str, tokens: list[tuple[int, bool]], n_cut: int
) -> None:
    said = text.encode()[: len(text.encode()) - n_cut]
    pieces, flags = list[bytes](), list[bool]()
    for size, flag in [*tokens, (len(said), True)]:
        if said:
            pieces.append(said[:size])
            flags.append(flag)
            said = said[size:]
    of_bytes = [flag for piece, flag in zip(pieces, flags, strict=True) for _ in piece]
    expected, at = "", 0
    for character in text:
        own = of_bytes[at : at + len(character.encode())]
        expected += "" if not own else "+" if all(own) else "-"
        at += len(character.encode())
    tokenizer = ByteTokenizer()
    tokenizer.token_bytes = lambda token, special=False: pieces[token]  # type: ignore[method-assign]  # noqa: ARG005
    stream = AnswerStream(tokenizer, follows_drafts=True)
    shown, marks = drafted_text(stream, range(len(pieces)), flags)
    assert (shown, marks) == (b"".join(pieces).decode(errors="replace"), expected)


@pytest.mark.parametrize(
    ("markers", "before", "answer"),
    [
        (THINK, "<think>\nhm, é\n</think>\n\n", "Líma. <think> ## ok"),
        (THINK, "", "<thing> is no marker"),
        (HARMONY, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>", "Líma."),
    ],
)
def test_what_is_drafted_of_the_answer_is_told_from_what_is_of_the_thought(
    markers: ReasoningMarkers, before: str, answer: str
) -> None:
    tokenizer = ByteTokenizer(["<|channel|>", "<|message|>", "<|start|>", "<|end|>"])
    head = tokenizer.encode(before)
    for period in (1, 2, 3, 7):
        flags = [i // period % 2 == 0 for i in range(len(answer))]
        ids = [token for character in answer for token in tokenizer.encode(character)]
        own = [flag for character, flag in zip(answer, flags, strict=True) for _ in tokenizer.encode(character)]
        for of_head in (True, False):
            stream = AnswerStream(tokenizer, stops=["##!"], markers=markers, follows_drafts=True)
            text, marks = drafted_text(stream, [*head, *ids], [*[of_head] * len(head), *own])
            assert text == answer
            assert marks == "".join("+" if flag else "-" for flag in flags)


def test_a_blank_line_between_messages_was_drafted_by_nobody() -> None:
    tokenizer = ByteTokenizer(["<|channel|>", "<|message|>", "<|start|>", "<|end|>"])
    said = "<|channel|>commentary<|message|>one<|end|><|start|>assistant<|channel|>final<|message|>two"
    ids = tokenizer.encode(said)
    stream = AnswerStream(tokenizer, markers=HARMONY, follows_drafts=True)
    assert drafted_text(stream, ids, [True] * len(ids)) == ("one\n\ntwo", "+++--+++")


def test_a_blank_line_before_characters_that_a_token_brought_with_half_a_marker() -> None:
    said = "<|channel|>commentary<|message|>one<|end|><|channel|>commentary<|message|>"
    tokenizer = TextTokenizer(controls=("<|channel|>", "<|message|>", "<|end|>"), texts=("t<|e",))
    stream = AnswerStream(tokenizer, markers=HARMONY, follows_drafts=True)
    ids = tokenizer.encode(said + "t<|e")
    assert drafted_text(stream, ids, [True] * len(ids)) == ("one\n\nt<|e", "+++--++++")


def test_joined_pieces_keep_their_ranges() -> None:
    assert joined([]) == ("", ())
    assert joined([("abc", ((0, 1), (2, 3))), ("", ()), ("de", ((0, 2),)), ("f", ())]) == ("abcdef", ((0, 1), (2, 5)))


def test_an_ordinary_token_costs_microseconds() -> None:
    """0.8 us measured on two busy cores (2.5 us with stop strings, 4 us in a harmony thought); 50 us is a defect."""
    tokenizer = ByteTokenizer()
    for stream in (
        AnswerStream(tokenizer),
        AnswerStream(tokenizer, stops=["###", "\nUser:"], markers=THINK, is_in_reasoning=True),
        AnswerStream(tokenizer, stops=["###"], follows_drafts=True),
    ):
        fastest = float("inf")
        for _ in range(5):
            started = time.thread_time()
            for _ in range(1000):
                stream.push(65)
            fastest = min(fastest, (time.thread_time() - started) / 1000)
        assert fastest < 50e-6
