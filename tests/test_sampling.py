"""Sampling against a plain reference, known answers of Philox, Triton's own generator, and statistics."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import SamplingParams
from runner.errors import BadModelFile
from runner.sampling import distribution, gumbel, philox, sample, uniform

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


def params(**values: object) -> SamplingParams:
    return SamplingParams(**{**PLAIN, **values})


def reference(logits: list[float], p: SamplingParams, history: list[int]) -> dict[int, float]:
    """The same filters in plain Python, one token at a time, each on a sorted list, in llama.cpp's order."""
    window = [] if p.penalty_last_n == 0 else history if p.penalty_last_n < 0 else history[-p.penalty_last_n :]
    scored = []
    for token, logit in enumerate(logits):
        count = window.count(token)
        if count:
            logit = logit / p.repeat_penalty if logit > 0 else logit * p.repeat_penalty
            logit = float(np.float32(logit - count * p.frequency_penalty - p.presence_penalty))
        if logit > -math.inf:
            scored.append((token, logit))
    scored.sort(key=lambda pair: (-pair[1], pair[0]))
    if p.temperature == 0:
        return {scored[0][0]: 1.0}
    if p.top_k > 0:
        scored = scored[: p.top_k]
    top = scored[0][1]
    if p.top_p < 1:
        total = sum(math.exp(logit - top) for _, logit in scored)
        running, kept = 0.0, []
        for pair in scored:
            kept.append(pair)
            running += math.exp(pair[1] - top)
            if running >= p.top_p * total:
                break
        scored = kept
    if p.min_p > 0:
        scored = [pair for pair in scored if pair[1] - top >= math.log(p.min_p)]
    weights = {token: math.exp((logit - top) / p.temperature) for token, logit in scored}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def as_dict(result: tuple[np.ndarray, np.ndarray]) -> dict[int, float]:
    return dict(zip(result[0].tolist(), result[1].tolist(), strict=True))


# --- Philox ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    low, high = (int(word, 16) for word in key.split())
    output = philox(high << 32 | low, [int(word, 16) for word in counter.split()])
    assert [f"{word:08x}" for word in output] == expected.split()


def test_philox_of_arrays_is_philox_of_their_numbers() -> None:
    counters = np.random.default_rng(3).integers(0, 2**32, (4, 50), dtype=np.uint64)
    before = counters.copy()
    together = np.stack(philox(77, counters))
    for i in range(50):
        assert together[:, i].tolist() == list(philox(77, counters[:, i].tolist()))
    assert np.array_equal(counters, before)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**64 - 1])
@pytest.mark.parametrize("n", [1, 2, 40, 511, 512, 513, 5000])
def test_the_noise_of_a_token_does_not_depend_on_its_company(seed: int, n: int) -> None:
    tokens = np.random.default_rng(n).permutation(2**18)[:n]
    together = uniform(seed, 2**32 - 1, tokens)
    for i in {0, n // 2, n - 1}:
        assert uniform(seed, 2**32 - 1, tokens[i : i + 1]) == together[i]


TRITON_SCRIPT = """
import json, sys
import numpy as np, torch, triton, triton.language as tl

@triton.jit
def draw(seed, tokens, positions, words, floats, N: tl.constexpr):
    at = tl.arange(0, N)
    token = tl.load(tokens + at)
    position = tl.load(positions + at)
    zero = token * 0
    a, b, c, d = tl.philox(tl.load(seed), token, position, zero, zero)
    tl.store(words + at, a.to(tl.int32, bitcast=True))
    tl.store(floats + at, tl.uint_to_uniform_float(a))

N = 4096
rng = np.random.default_rng(5)
answers = []
for seed in (0, 1, 2**31, 2**32 - 1, 2**32, 0x123456789ABCDEF0, 2**63, 2**64 - 1):
    tokens = rng.integers(0, 2**18, N, dtype=np.int32)
    positions = rng.choice(rng.integers(0, 2**20, 8, dtype=np.int32), N)
    words, floats = torch.empty(N, dtype=torch.int32), torch.empty(N, dtype=torch.float32)
    as_signed = seed - 2**64 if seed >= 2**63 else seed
    draw[(1,)](torch.tensor([as_signed]), torch.from_numpy(tokens), torch.from_numpy(positions), words, floats, N)
    answers.append([seed, tokens.tolist(), positions.tolist(), words.tolist(), floats.view(torch.int32).tolist()])
json.dump(answers, sys.stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton exists on Linux only")
def test_the_random_numbers_are_those_of_triton(tmp_path: Path) -> None:
    script = tmp_path / "draw.py"
    script.write_text(TRITON_SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"TRITON_INTERPRET": "1", "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for seed, tokens, positions, words, floats in json.loads(done.stdout):
        counter = (np.array(tokens, np.uint64), np.array(positions, np.uint64), 0, 0)
        assert philox(seed, counter)[0].astype(np.uint32).view(np.int32).tolist() == words
        for position in set(positions):
            chosen = np.array([token for token, at in zip(tokens, positions, strict=True) if at == position])
            theirs = [bits for bits, at in zip(floats, positions, strict=True) if at == position]
            assert uniform(seed, position, chosen).view(np.int32).tolist() == theirs


def test_uniform_numbers_are_inside_zero_and_one_and_gumbel_noise_is_finite_at_the_ends(monkeypatch) -> None:
    ends = np.array([0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 1, 0xFFFFFFFE], dtype=np.uint32)
    monkeypatch.setattr("runner.sampling._first_words", lambda *_: ends)
    u = uniform(1, 0, np.arange(6))
    assert u.dtype == np.float32
    assert u[0] == u[1] == np.float32(2.0**-32)
    assert u[2] == u[3] == np.float32(1 - 2.0**-24)
    assert u[4] == u[5] > u[0]
    assert np.isfinite(gumbel(1, 0, np.arange(6))).all()


def test_gumbel_noise_has_the_mean_and_variance_of_its_distribution() -> None:
    noise = gumbel(11, 3, np.arange(200_000))
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.03)


# --- greedy, and what is reproducible -----------------------------------------------------------------------------


def test_temperature_zero_takes_the_lowest_id_of_the_largest() -> None:
    logits = np.array([1, 5, 5, 2], np.float32)
    assert sample(logits, params(temperature=0, seed=None), [], 0) == 1


def test_temperature_zero_looks_after_penalties() -> None:
    logits = np.array([1, 5, 4.9, 2], np.float32)
    assert sample(logits, params(temperature=0, repeat_penalty=1.1), [1], 0) == 2


def test_the_same_seed_and_position_give_the_same_token_and_others_do_not() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    first = [sample(logits, params(seed=9), [], position) for position in range(100)]
    assert first == [sample(logits, params(seed=9), [], position) for position in range(100)]
    assert first != [sample(logits, params(seed=10), [], position) for position in range(100)]
    assert len(set(first)) > 50


def test_history_does_not_matter_unless_it_is_penalized() -> None:
    logits = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    for position in range(30):
        assert sample(logits, params(), [], position) == sample(logits, params(), list(range(position)), position)
    penalized = params(presence_penalty=50)
    drawn = [sample(logits, penalized, list(range(250)), position) for position in range(100)]
    assert not any(250 - 64 <= token < 250 for token in drawn)
    assert any(token < 186 for token in drawn)


def test_the_logits_are_not_modified() -> None:
    logits = np.random.default_rng(2).standard_normal(5000).astype(np.float32)
    before = logits.copy()
    for p in (params(repeat_penalty=1.5), params(top_k=40), params(top_p=0.9), params(min_p=0.1), params()):
        sample(logits, p, [1, 2, 3], 4)
        distribution(logits, p, [1, 2, 3])
    assert np.array_equal(logits, before)


def test_read_only_logits_are_accepted() -> None:
    logits = np.arange(10, dtype=np.float32)
    logits.flags.writeable = False
    assert 0 <= sample(logits, params(repeat_penalty=1.2, top_k=3), [9], 1) < 10


# --- filters ---------------------------------------------------------------------------------------------------------


def test_penalties_follow_llama_cpp() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.0, 3.0], np.float32)
    p = params(repeat_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
    ids, probs = distribution(logits, p, [0, 0, 1, 3])
    expected = np.array([2 / 2 - 1.25, -2 * 2 - 0.75, 1.0, 0 - 0.75, 3.0])
    weights = np.exp(expected)
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(
        dict(enumerate((weights / weights.sum()).tolist())), rel=1e-6
    )


def test_penalties_look_at_the_last_tokens_only() -> None:
    logits = np.array([3, 2, 1], np.float32)
    greedy = {"temperature": 0, "presence_penalty": 10.0}
    assert sample(logits, params(**greedy, penalty_last_n=1), [0, 1], 2) == 0
    assert sample(logits, params(**greedy, penalty_last_n=2), [0, 1], 2) == 2
    assert sample(logits, params(**greedy, penalty_last_n=-1), [0] + [1] * 200, 201) == 2
    assert sample(logits, params(**greedy, penalty_last_n=0), [0, 1], 2) == 0


def test_penalties_ignore_ids_that_have_no_logit() -> None:
    logits = np.array([3, 2, 1], np.float32)
    assert sample(logits, params(temperature=0, presence_penalty=1.5), [99, -1, 3, 0], 4) == 1


def test_history_may_be_an_array() -> None:
    logits = np.array([3, 2, 1], np.float32)
    p = params(temperature=0, presence_penalty=1.5)
    assert sample(logits, p, array("i", [0]), 1) == sample(logits, p, np.array([0], np.int32), 1) == 1


def test_top_p_zero_keeps_the_most_probable_token_alone() -> None:
    assert distribution(np.array([1, 4, 4, 0], np.float32), params(top_p=0.0), [])[0].tolist() == [1]


def test_top_p_one_keeps_everything() -> None:
    assert distribution(np.zeros(3000, np.float32), params(top_p=1.0), [])[0].size == 3000


@pytest.mark.parametrize("top_k", [0, 2000])
def test_top_p_takes_as_few_as_reach_it(top_k: int) -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    assert distribution(logits, params(top_p=0.74, top_k=top_k), [])[0].tolist() == [0, 1]
    assert distribution(logits, params(top_p=0.76, top_k=top_k), [])[0].tolist() == [0, 1, 2]
    equal = np.zeros(4000, np.float32)
    assert distribution(equal, params(top_p=0.5, top_k=top_k), [])[0].tolist() == list(range((top_k or 4000) // 2))


def test_min_p_is_a_share_of_the_most_probable() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.04, 0.16], np.float32))
    assert sorted(distribution(logits, params(min_p=0.1), [])[0].tolist()) == [0, 1, 3]
    assert distribution(np.array([2, 7, 7], np.float32), params(min_p=1.0), [])[0].tolist() == [1, 2]


@pytest.mark.parametrize("size", [64, 100_003])
def test_top_k_takes_the_lowest_ids_of_equals(size: int) -> None:
    logits = np.zeros(size, np.float32)
    logits[[size - 1, 50]] = 1
    assert distribution(logits, params(top_k=5), [])[0].tolist() == [50, size - 1, 0, 1, 2]


@pytest.mark.parametrize("top_k", [1, 7, 40, 1500, 100_000])
def test_top_k_of_a_large_vocabulary_equals_a_full_sort(top_k: int) -> None:
    logits = (np.random.default_rng(top_k).standard_normal(32_003) * 3).astype(np.float32).round(1)
    expected = sorted(range(logits.size), key=lambda i: (-logits[i], i))[:top_k]
    assert distribution(logits, params(top_k=top_k), [])[0].tolist() == expected


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95, 0.999])
def test_top_p_of_a_large_vocabulary_equals_a_full_sort(scale: float, top_p: float) -> None:
    logits = (np.random.default_rng(7).standard_normal(20_011) * scale).astype(np.float32)
    ours = as_dict(distribution(logits, params(top_p=top_p), []))
    weights = np.sort(np.exp(logits.astype(np.float64)))[::-1]
    n_expected = int(np.searchsorted(weights.cumsum(), top_p * weights.sum())) + 1
    assert abs(len(ours) - n_expected) <= 1
    assert set(ours) == set(np.argsort(-logits, kind="stable")[: len(ours)].tolist())


def test_masked_tokens_are_never_candidates() -> None:
    logits = np.full(5000, -np.inf, np.float32)
    logits[[10, 4000]] = [1, 1.5]
    for p in (params(), params(top_k=40), params(top_p=0.999), params(min_p=1e-9), params(top_k=40, top_p=0.9999)):
        assert set(distribution(logits, p, [])[0].tolist()) == {10, 4000}
        assert sample(logits, p, [], 3) in {10, 4000}


logit_lists = st.lists(
    # Below 1e-9 logits differ, and their probabilities do not: which of the two comes first is nobody's promise.
    st.one_of(
        st.floats(-30, 30, width=32).map(lambda x: x if abs(x) > 1e-9 else 0.0),
        st.sampled_from([-math.inf, 0.0, 1.0]),
    ),
    min_size=1,
    max_size=40,
).filter(lambda logits: max(logits) > -math.inf)


@settings(max_examples=400)
@given(
    logits=logit_lists,
    temperature=st.sampled_from([0, 1e-3, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0, 0.013, 0.313, 0.777, 0.951, 1]),
    min_p=st.sampled_from([0, 0.0503, 0.313, 1]),
    repeat=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0, 0.41, -1.1]),
    frequency=st.sampled_from([0, 0.21, -0.3]),
    last_n=st.sampled_from([0, 2, 64, -1]),
    history=st.lists(st.integers(0, 45), max_size=20),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
)
def test_every_combination_equals_the_reference(
    logits, temperature, top_k, top_p, min_p, repeat, presence, frequency, last_n, history, seed, position
) -> None:
    p = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        penalty_last_n=last_n,
        seed=seed,
    )
    values = np.array(logits, np.float32)
    ours = as_dict(distribution(values, p, history))
    theirs = reference([float(x) for x in values], p, history)
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-12)
    token = sample(values, p, history, position)
    assert token in ours
    ids = np.array(sorted(ours))
    if temperature >= 0.3 and len(ids) > 1:
        noisy = np.log(np.maximum([ours[i] for i in ids.tolist()], 1e-300)) + gumbel(seed, position, ids)
        best_two = np.sort(noisy)[-2:]
        if best_two[1] - best_two[0] > 1e-3:
            assert token == ids[noisy.argmax()]


def test_the_race_in_pieces_equals_the_race_in_one() -> None:
    logits = (np.random.default_rng(4).standard_normal(50_000) * 2).astype(np.float32)
    ids = np.arange(logits.size)
    for position in range(40):
        whole = (logits.astype(np.float64) - logits.max()) / 1.7 + gumbel(21, position, ids)
        assert sample(logits, params(temperature=1.7, seed=21), [], position) == whole.argmax()


# --- statistics ------------------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    "p",
    [
        params(seed=123),
        params(seed=2**63, temperature=0.6),
        params(seed=5, top_k=6, top_p=0.9, min_p=0.05, repeat_penalty=1.3),
    ],
)
def test_sampled_frequencies_are_those_of_the_distribution(p: SamplingParams) -> None:
    logits = np.array([1.0, 0.5, 0.0, 2.0, -1.0, 1.5, 0.2, -0.3, 0.9, 1.1], np.float32)
    history = [3, 5]
    ids, probs = distribution(logits, p, history)
    drawn = np.array([sample(logits, p, history, position) for position in range(12_000)])
    counts = np.array([(drawn == token).sum() for token in ids])
    assert counts.sum() == drawn.size
    degrees = ids.size - 1
    assert chi_square(counts, probs) < degrees + 4 * math.sqrt(2 * degrees) + 6  # p of about 1e-4


@pytest.mark.parametrize("values", [{}, {"top_k": 6, "top_p": 0.9, "min_p": 0.02, "repeat_penalty": 1.3}])
def test_what_is_drawn_under_a_mask_is_distributed_as_the_allowed_ones_are(values: dict[str, object]) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 1, 40).astype(np.float32)
    allowed = rng.random(40) < 0.4
    history, n = [1, 2, 3, 3], 8000
    without = np.where(allowed, logits, -np.inf).tolist()
    expected = reference(without, params(**values), history)
    assert as_dict(distribution(logits, params(**values), history, allowed)) == pytest.approx(expected)
    drawn = [sample(logits, params(**values, seed=seed), history, 9, allowed) for seed in range(n)]
    ids = np.array(sorted(expected))
    counts = np.array([drawn.count(token) for token in ids])
    assert counts.sum() == n, "and nothing else"
    degrees = ids.size - 1
    statistic = chi_square(counts, np.array([expected[token] for token in ids]))
    assert statistic < degrees + 4 * math.sqrt(2 * degrees) + 6


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.7, 2.0]), st.booleans())
def test_a_choice_that_a_mask_allows_stays_the_choice(seed: int, temperature: float, is_penalized: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, 300).astype(np.float32)
    kept = logits.copy()
    p = params(temperature=temperature, seed=seed, repeat_penalty=1.5 if is_penalized else 1.0)
    history = rng.integers(0, 300, 30).tolist()
    free = sample(logits, p, history, 30)
    allowed = rng.random(300) < 0.1
    assert allowed[sample(logits, p, history, 30, allowed)]
    allowed[free] = True
    assert sample(logits, p, history, 30, allowed) == free
    only = np.arange(300) == 7
    assert sample(logits, p, history, 30, only) == 7
    assert np.array_equal(logits, kept)


def test_allowed_tokens_without_a_finite_logit_are_refused() -> None:
    logits = np.array([1.0, -np.inf, 2.0], np.float32)
    for p in (params(), params(temperature=0)):
        with pytest.raises(BadModelFile):
            sample(logits, p, [], 0, np.array([False, True, False]))


def test_tokens_at_neighbouring_positions_are_independent() -> None:
    logits = np.zeros(4, np.float32)
    drawn = np.array([sample(logits, params(seed=8), [], position) for position in range(12_000)])
    pairs = np.bincount(drawn[:-1] * 4 + drawn[1:], minlength=16)
    assert chi_square(pairs, np.full(16, 1 / 16)) < 45  # 15 degrees of freedom, p of about 1e-4


# --- broken models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [params(temperature=0), params(), params(top_k=2), params(top_p=0.5), params(min_p=0.5)])
@pytest.mark.parametrize(
    ("logits", "what"),
    [
        ([math.nan] * 8, "NaN"),
        ([1.0, math.nan, 2.0, 0.0], "NaN"),
        ([-math.inf] * 8, "all -inf"),
        ([0.0, math.inf, 1.0], "+inf"),
    ],
)
def test_broken_logits_say_that_the_model_is_broken(p: SamplingParams, logits: list[float], what: str) -> None:
    with pytest.raises(BadModelFile, match=r"logits are") as caught:
        sample(np.array(logits, np.float32), p, [0], 3)
    assert what in caught.value.message
    assert caught.value.hint
