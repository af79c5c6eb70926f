"""Tokens chosen on the device: numpy's `sample` chooses the same ones, filter by filter, seed by seed, tie by tie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernel_data import DEVICE
from torch import Tensor

from runner.config import SamplingParams
from runner.errors import BadModelFile
from runner.kernels.choice import choose_ref
from runner.kernels.greedy import greedy_from_tiles, greedy_from_tiles_ref
from runner.kernels.sampling import Choice, choose, is_supported
from runner.sampling import sample, uniform

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
KINDS = [{"temperature": 0}, {}, {"min_p": 0.5}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 2, "top_p": 0.5}]


def params(**values: object) -> SamplingParams:
    return SamplingParams(**{**PLAIN, **values})


def at(position: int) -> Tensor:
    return torch.tensor([position], device=DEVICE)


def on_device(logits: np.ndarray) -> Tensor:
    return torch.from_numpy(np.atleast_2d(logits)).to(DEVICE)


def logits_of(rows: int, vocabulary: int, scale: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocabulary)) * scale).astype(np.float32)


def by_numpy(logits: np.ndarray, p: SamplingParams, position: int) -> list[int]:
    """What the host says, with -1 where it refuses."""
    tokens = []
    for m, row in enumerate(np.atleast_2d(logits)):
        try:
            tokens.append(sample(row, p, [], position + m))
        except BadModelFile:
            tokens.append(-1)
    return tokens


def check(logits: np.ndarray, p: SamplingParams, position: int = 7) -> list[int]:
    """The kernels and their reference choose what numpy chooses; gives that."""
    request, wanted = Choice.of(p, DEVICE), by_numpy(logits, p, position)
    assert choose(on_device(logits), request, at(position)).tolist() == wanted
    assert choose_ref(on_device(logits), request, at(position)).tolist() == wanted
    return wanted


# --- every filter ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 0.6])
@pytest.mark.parametrize(("top_k", "top_p"), list(itertools.product([0, 1, 40], [1.0, 0.9, 0.0])))
def test_every_combination_chooses_what_numpy_chooses(temperature: float, top_k: int, top_p: float) -> None:
    for i, min_p in enumerate((0.0, 0.05)):
        p = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=2**64 - 1 - i)
        check(logits_of(1, 1100, 2.0, seed=i), p, position=1000 * i)


def test_random_requests_on_logits_with_many_equals_choose_what_numpy_chooses() -> None:
    rng = np.random.default_rng(3)
    wanted = set()
    for _ in range(12):
        logits = (logits_of(2, int(rng.integers(1, 70)), 2.0, seed=int(rng.integers(2**31))) * 2).round() / 2
        logits[rng.random(logits.shape) < 0.2] = -np.inf
        logits[:, 0] = rng.choice([0.0, -0.0, 3.0], 2)
        p = params(
            temperature=float(rng.choice([0, 1e-3, 0.3, 1.0, 30.0])),
            top_k=int(rng.integers(0, 75)),
            top_p=float(rng.choice([0, 0.013, 0.313, 0.777, 0.951, 1])),
            min_p=float(rng.choice([0, 0.0503, 0.313, 1])),
            seed=int(rng.integers(2**63)),
        )
        wanted.update(check(logits, p, int(rng.integers(2**32 - 4))))
    assert len(wanted) > 6


@pytest.mark.parametrize("scale", [0.0, 0.01, 6.0])
def test_lists_longer_than_a_chunk_are_weighed_whole(scale: float) -> None:
    for values in ({"top_p": 0.8}, {"top_k": 2900}, {"top_k": 2500, "top_p": 0.7, "temperature": 0.5}):
        check(logits_of(1, 3001, scale), params(**values))


def test_a_large_vocabulary_is_nothing_special() -> None:
    vocabulary = 262_208
    logits = -1.3 * np.log(np.random.default_rng(1).permutation(vocabulary) + 1).astype(np.float32)
    check(logits, SamplingParams(seed=5))


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("temperature", [1e-3, 1.0, 100.0])
def test_without_filters_the_whole_vocabulary_races(scale: float, temperature: float) -> None:
    check(logits_of(2, 2050, scale), params(temperature=temperature), position=2**32 - 2)


# --- ends of the filters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("min_p", [0.05, 0.313, 1.0])
def test_min_p_ends_at_the_same_float_as_in_numpy(min_p: float, top_k: int) -> None:
    for top in (0.1, 33.3):
        end = np.float32(top + math.log(min_p))
        below = np.nextafter(end, np.float32(-np.inf))
        logits = np.array([below, end, np.nextafter(below, np.float32(-np.inf)), top, top], np.float32)
        logits = np.minimum(logits, np.float32(top))
        for seed in range(2):
            # So hot that every candidate is as likely as the others.
            check(logits, params(min_p=min_p, top_k=top_k, temperature=100, seed=seed))


def test_top_k_and_top_p_keep_the_lowest_ids_of_equals() -> None:
    logits = np.zeros((6, 1500), np.float32)
    logits[:, [1499, 50]] = 1e-3
    drawn = check(logits, params(top_k=5, temperature=100))
    assert set(drawn) <= {50, 1499, 0, 1, 2}
    assert len(set(drawn)) > 2
    halved = check(logits[:2] * 0, params(top_p=0.5, temperature=100))
    assert max(halved) < 750


@pytest.mark.parametrize("values", [{"top_p": 0.9}, {"top_k": 13}])
def test_candidates_that_are_far_apart_are_all_found(values: dict[str, float]) -> None:
    logits = np.full((10, 2048), -30.0, np.float32)
    logits[:, ::128] = np.linspace(0, -1, 16)
    drawn = check(logits, params(temperature=100, **values))
    assert set(drawn) <= set(range(0, 14 * 128, 128))
    assert max(drawn) > 10 * 128


def test_top_p_zero_and_top_k_one_leave_the_first_of_the_largest() -> None:
    logits = np.array([1, 0, 0, 0, 0, 4, 4, 0], np.float32)
    for values in ({"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0, "top_k": 1}, {"temperature": 0, "seed": None}):
        assert check(logits, params(**values)) == [5]


def test_top_p_is_a_share_of_what_top_k_keeps_before_min_p_drops_any() -> None:
    logits = np.full((12, 30), -9.0, np.float32)
    logits[:, 1:24] = np.log([0.5, 0.3, 0.1] + 20 * [0.005])
    # 0.85 of all 23 needs three tokens; of the three that min_p leaves it would need two.
    assert set(check(logits, params(top_k=23, top_p=0.85, min_p=0.1, temperature=100))) == {1, 2, 3}


def test_zero_and_minus_zero_are_equal() -> None:
    logits = np.array([-1.0, -0.0, 0.0, -0.0], np.float32)
    for values in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0.0}):
        assert check(logits, params(**values)) == [1]


def test_masked_tokens_are_never_chosen() -> None:
    logits = np.full((4, 1300), -np.inf, np.float32)
    logits[:, [10, 1200]] = [1, 1.5]
    for values in ({}, {"top_k": 40}, {"top_p": 0.999}, {"min_p": 1e-9}, {"top_k": 40, "top_p": 0.9999}):
        assert set(check(logits, params(**values))) <= {10, 1200}


# --- the random numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 2**32, 2**63 + 5])
def test_seed_and_position_decide_and_rows_are_at_neighbouring_positions(seed: int) -> None:
    logits = np.zeros((8, 30), np.float32)
    drawn = check(logits, params(seed=seed), position=2**31 - 4)
    assert len(set(drawn)) > 3
    assert drawn[3:] == check(logits[3:], params(seed=seed), position=2**31 - 1)
    assert drawn != check(logits, params(seed=seed + 1), position=2**31 - 4)


def test_equal_noise_goes_to_the_lower_id() -> None:
    ids = np.arange(2**15)
    drawn = uniform(9, 4, ids)
    values, first, counts = np.unique(drawn, return_index=True, return_counts=True)
    twice = values[counts > 1].max()
    pair = np.flatnonzero(drawn == twice)
    assert first[values == twice] == pair[0]
    logits = np.full(2**15, -np.inf, np.float32)
    logits[pair] = 2.0
    for values in ({}, {"top_k": 2}, {"top_p": 0.99}):
        assert check(logits, params(seed=9, **values), position=4) == [pair[0]]


@pytest.mark.parametrize("values", [{}, {"top_k": 9, "top_p": 0.8}])
def test_a_row_knows_nothing_of_the_others(values: dict[str, float]) -> None:
    logits, request = on_device(logits_of(16, 1030, 1.0)), Choice.of(params(**values), DEVICE)
    together = choose(logits, request, at(20)).tolist()
    assert choose(logits[:3], request, at(20)).tolist() == together[:3]
    for m in (0, 2, 15):
        assert choose(logits[m : m + 1], request, at(20 + m)).tolist() == [together[m]]


# --- what the engine relies on ---------------------------------------------------------------------------------------


def recorded(launch: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A launch that Python takes no part in any more: a captured graph on a GPU, without one the launch itself."""
    if DEVICE.type == "cpu":
        return launch
    launch()  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = launch()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def test_one_recorded_launch_serves_every_request_and_position() -> None:
    logits, position, request = logits_of(2, 1200, 1.5), at(0), Choice.of(params(), DEVICE)
    there = on_device(logits)
    run = recorded(lambda: choose(there, request, position))
    for i, values in enumerate(2 * KINDS):
        p = params(seed=i, **values)
        request.rewrite(p)
        position.fill_(100 * i)
        assert run().tolist() == by_numpy(logits, p, 100 * i)


@pytest.mark.parametrize("values", KINDS)
def test_broken_rows_give_no_token_and_leave_the_others_alone(values: dict[str, float]) -> None:
    logits = logits_of(5, 1100, 1.0)
    logits[0, 1050] = np.nan
    logits[1] = np.nan
    logits[2] = -np.inf
    logits[4, 3] = np.inf
    tokens = check(logits, params(**values))
    assert [token < 0 for token in tokens] == [True, True, True, False, True]


def test_sampling_needs_a_seed_and_greedy_choice_does_not() -> None:
    with pytest.raises(ValueError, match="needs a seed"):
        Choice.of(params(seed=None), DEVICE)
    Choice.of(params(seed=None, temperature=0), DEVICE)


def test_penalties_are_left_to_the_host() -> None:
    assert is_supported(SamplingParams())
    assert is_supported(params(repeat_penalty=1.1, penalty_last_n=0))
    for values in ({"repeat_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}):
        assert not is_supported(params(**values))


# --- greedy, from the tiles of a product -----------------------------------------------------------------------------


def tiles_of(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Maxima and first ids of tiles of `width` columns."""
    padded = torch.nn.functional.pad(logits, (0, -logits.shape[1] % width), value=-math.inf)
    maxima, arguments = padded.view(len(logits), -1, width).max(2)
    return maxima, (arguments + torch.arange(maxima.shape[1], device=DEVICE) * width).int()


@pytest.mark.parametrize(("vocabulary", "width"), [(7, 8), (999, 8), (40_000, 8), (2048, 1), (300, 64)])
def test_the_best_of_the_tiles_is_the_best_of_all(vocabulary: int, width: int) -> None:
    logits = on_device(logits_of(3, vocabulary, 2.0).round(1))
    maxima, arguments = tiles_of(logits, width)
    wanted = by_numpy(logits.cpu().numpy(), params(temperature=0), 0)
    assert greedy_from_tiles(maxima, arguments).tolist() == wanted
    assert greedy_from_tiles_ref(maxima, arguments).tolist() == wanted


def test_the_lowest_id_of_equal_tiles_wins_in_any_order_of_the_tiles() -> None:
    maxima = torch.zeros(16, 4100, device=DEVICE)
    order = torch.stack([torch.randperm(4100, generator=torch.Generator().manual_seed(m)) for m in range(16)])
    assert greedy_from_tiles(maxima, order.int().to(DEVICE)).tolist() == [0] * 16
    maxima[:, 5] = -0.0
    assert greedy_from_tiles(maxima, (order + 9).int().to(DEVICE)).tolist() == [9] * 16


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 2047, 2048, 4099])
def test_a_bad_tile_gives_no_token(bad: float, place: int) -> None:
    maxima = torch.randn(3, 4100, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    arguments = torch.arange(4100, dtype=torch.int32, device=DEVICE).repeat(3, 1)
    wanted = maxima.argmax(1)
    maxima[1, place] = bad
    wanted[1] = -1
    assert torch.equal(greedy_from_tiles(maxima, arguments), wanted)
    assert torch.equal(greedy_from_tiles_ref(maxima, arguments), wanted)


def test_tiles_that_are_all_minus_infinity_give_no_token() -> None:
    maxima = torch.full((1, 3), -math.inf, device=DEVICE)
    assert greedy_from_tiles(maxima, torch.zeros(1, 3, dtype=torch.int32, device=DEVICE)).tolist() == [-1]
