"""The distribution that is sampled from, and that accept/reject leaves it unchanged.

Order of proof: hand-worked arrays, exact identities in float64, enumeration of the whole output
law over an exact partition of the uniforms, and last simulation with its odds and its mutants.
"""

import itertools
import math
from collections import Counter

import pytest
import torch
from checks import assert_same_distribution
from hypothesis import given
from hypothesis import strategies as st

from specbench.records import Sampling
from specbench.sampling import (
    accept,
    accept_largest,
    draw,
    evidence,
    largest,
    overlap,
    residual,
    standardize,
)

LAST_UNIFORM = 1.0 - 2.0**-53
OPTIONS = [
    Sampling(1.0),
    Sampling(0.0),
    Sampling(0.5),
    Sampling(1.7),
    Sampling(1.0, top_k=2),
    Sampling(1.0, top_p=0.7),
    Sampling(0.8, top_k=4, top_p=0.9),
]
SYMBOLS = 5


def law(*values):
    return torch.tensor(values, dtype=torch.float64)


def logs(*values):
    return torch.tensor(values, dtype=torch.float64).log()


def one(value):
    return torch.tensor([value], dtype=torch.float64)


def accept_one(p, q, token, uniform, last=0.5, after=None):
    """`accept` for one row that drafted one token."""
    target = torch.stack((p, p if after is None else after))[None]
    draft = torch.tensor([[token]])
    ones = torch.ones(1, dtype=torch.int64)
    return accept(target, q[None, None], draft, ones, one(uniform)[None], one(last))


# --- standardize -------------------------------------------------------------------------------


def test_temperature_one_is_softmax_in_float32_whatever_the_dtype() -> None:  # faults A7, B19
    logits = torch.tensor([0.0, -20.0])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        probs = standardize(logits.to(dtype), Sampling(1.0))
        assert probs.dtype == torch.float32
        assert probs[1].item() == pytest.approx(2.06e-9, rel=1e-2)


@pytest.mark.parametrize(
    ("temperature", "expected"), [(1.0, (0.665, 0.245, 0.090)), (0.5, (0.867, 0.117, 0.016))]
)
def test_temperature_divides_the_logits(temperature, expected) -> None:  # faults A6
    probs = standardize(torch.tensor([2.0, 1.0, 0.0]), Sampling(temperature))
    assert probs.tolist() == pytest.approx(expected, abs=5e-4)


def test_temperature_on_one_side_only_shows_in_the_overlap() -> None:  # faults A5, A6
    logits = torch.tensor([2.0, 1.0, 0.0])
    cold, warm = standardize(logits, Sampling(0.5)), standardize(logits, Sampling(1.0))
    assert overlap(cold, warm).item() == pytest.approx(0.798, abs=5e-4)
    assert overlap(cold, cold).item() == pytest.approx(1.0, abs=1e-6)


def test_temperature_zero_is_one_hot_at_the_lowest_of_equal_maxima() -> None:
    logits = torch.zeros(3, 40_000)
    logits[0, [7, 30_000]] = 1.0
    logits[1, 39_999] = -math.inf
    logits[2, [39_998, 39_999]] = 2.0
    probs = standardize(logits, Sampling(0.0))
    assert probs.argmax(-1).tolist() == [7, 0, 39_998]
    assert torch.equal(probs.sum(-1), torch.ones(3))
    assert torch.equal(probs.amax(-1), torch.ones(3))


def test_temperatures_near_zero_end_at_the_argmax() -> None:
    logits = torch.tensor([1.0, 3.0, 2.999])
    for temperature in (1e-6, 1e-19, 1e-21, 1e-300):
        assert standardize(logits, Sampling(temperature)).tolist() == [0.0, 1.0, 0.0]


def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_a_tie() -> None:
    probs = standardize(torch.tensor([1.0, 0.0, 1.0, 1.0, -1.0]), Sampling(1.0, top_k=2))
    assert probs.tolist() == pytest.approx([0.5, 0.0, 0.5, 0.0, 0.0])
    flat = standardize(torch.zeros(2, 1000), Sampling(1.0, top_k=3))
    assert (flat > 0).nonzero()[:, 1].tolist() == [0, 1, 2, 0, 1, 2]


def test_top_k_renormalises() -> None:  # faults A2
    probs = standardize(torch.tensor([2.0, 1.0, 0.0]), Sampling(1.0, top_k=2))
    assert probs.tolist() == pytest.approx([0.731, 0.269, 0.0], abs=5e-4)


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert torch.equal(standardize(logits, Sampling(1.0, top_k=9)), logits.softmax(-1))
    wide = standardize(logits, Sampling(1.0, top_k=9, top_p=0.99999))
    assert wide.tolist() == pytest.approx(logits.softmax(-1).tolist())


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:  # faults A10
    logits = logs(0.3, 0.5, 0.2)
    assert standardize(logits, Sampling(top_p=0.8)).tolist() == pytest.approx([0.375, 0.625, 0.0])
    assert standardize(logits, Sampling(top_p=0.81)).tolist() == pytest.approx([0.3, 0.5, 0.2])
    assert standardize(logits, Sampling(top_p=0.5)).tolist() == [0.0, 1.0, 0.0]
    assert standardize(logits, Sampling(top_p=1e-9)).tolist() == [0.0, 1.0, 0.0]
    # .7 in float32 is below .7, and still reaches it.
    assert standardize(logs(0.7, 0.3), Sampling(top_p=0.7)).tolist() == [1.0, 0.0]


def test_top_p_keeps_the_lowest_ids_of_a_tie() -> None:
    probs = standardize(torch.zeros(8), Sampling(top_p=0.5))
    assert probs.tolist() == [0.25] * 4 + [0.0] * 4


def test_filters_come_after_temperature_and_top_p_after_top_k() -> None:
    # T = 2 turns (16, 4, 1) / 21 into (4, 2, 1) / 7.
    logits = logs(16 / 21, 4 / 21, 1 / 21)
    # 4/7 does not reach .6 while 16/21 would, and 4/6 of the two that top-k leaves does.
    top_p = standardize(logits, Sampling(2.0, top_p=0.6))
    assert top_p.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])
    both = standardize(logits, Sampling(2.0, top_k=2, top_p=0.6))
    assert both.tolist() == [1.0, 0.0, 0.0]


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=8),
    st.integers(0, 9),
    st.floats(0.05, 1.0),
)
def test_filters_agree_with_a_stable_sort_in_plain_python(values, top_k, top_p) -> None:
    weights = [math.exp(value) for value in values]
    order = sorted(range(len(values)), key=lambda i: -values[i])[: top_k or None]
    total, running, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if kept and top_p < 1.0 and running >= top_p - 1e-6:
            break
        kept.append(i)
        running += weights[i] / total
    mass = sum(weights[i] for i in kept)
    expected = [weights[i] / mass if i in kept else 0.0 for i in range(len(values))]
    probs = standardize(torch.tensor(values).float(), Sampling(1.0, top_k, top_p))
    assert probs.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("sampling", OPTIONS, ids=str)
def test_a_batch_is_its_rows(sampling) -> None:
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0)) * 3
    together = standardize(logits, sampling)
    for index in itertools.product(range(2), range(3)):
        assert torch.equal(together[index], standardize(logits[index], sampling))
    assert together.sum(-1).flatten().tolist() == pytest.approx([1.0] * 6, abs=1e-6)


@pytest.mark.parametrize("sampling", OPTIONS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_without_a_law_never_become_one(sampling, bad) -> None:  # faults B2
    logits = torch.zeros(3, SYMBOLS)
    logits[1] = -math.inf if bad < 0 else torch.tensor([0.0, 0.0, bad, 0.0, 0.0])
    assert largest(logits)[1].isfinite().tolist() == [True, False, True]
    probs = standardize(logits, sampling)
    assert evidence(probs).isfinite().tolist() == [True, False, True]
    assert probs.isnan().any(-1).tolist() == [False, True, False]
    assert 0 <= draw(probs, torch.full((3,), 0.5, dtype=torch.float64))[1] < SYMBOLS


def test_a_forbidden_token_is_part_of_a_sound_law() -> None:  # faults A19
    logits = torch.tensor([0.0, -math.inf, 1.0])
    assert largest(logits)[1] == 1.0
    for sampling in OPTIONS:
        probs = standardize(logits, sampling)
        assert evidence(probs).isfinite()
        assert probs[1] == 0.0


# --- draw --------------------------------------------------------------------------------------


def test_draw_inverts_the_cumulative_law() -> None:
    uniforms = law(0.0, 0.24, 0.25, 0.49, 0.5, 0.99)
    ids = draw(law(0.25, 0.25, 0.5).expand(6, 3), uniforms)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [0, 0, 1, 1, 2, 2]


def test_draw_scales_by_the_total() -> None:
    ids = draw(law(1.0, 1.0).expand(4, 2), law(0.0, 0.49, 0.5, LAST_UNIFORM))
    assert ids.tolist() == [0, 0, 1, 1]


@given(
    st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=9).filter(lambda v: max(v) > 0),
    st.one_of(st.sampled_from([0.0, 0.5, LAST_UNIFORM]), st.floats(0.0, LAST_UNIFORM)),
)
def test_draw_never_returns_an_impossible_token(values, uniform) -> None:
    probs = torch.tensor([0.0, *values, 0.0, 0.0])
    assert probs[draw(probs, torch.tensor(uniform, dtype=torch.float64))] > 0


@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST_UNIFORM])
def test_draw_of_a_one_hot_is_its_token(uniform) -> None:
    assert draw(torch.eye(4), law(*[uniform] * 4)).tolist() == [0, 1, 2, 3]


def test_draw_has_the_law_it_is_given() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = Counter(draw(probs.expand(20_000, 4), uniforms).tolist())
    assert_same_distribution(counts, {0: 0.5, 2: 0.3, 3: 0.2})


# --- overlap and residual ----------------------------------------------------------------------


def test_overlap_is_the_sum_of_minima() -> None:  # faults A8, A13, A14, E10
    assert overlap(law(0.1, 0.9), law(0.9, 0.1)).item() == pytest.approx(0.2)
    assert overlap(law(0.6, 0.4), law(0.6, 0.4)).item() == 1.0
    assert overlap(law(0.6, 0.4), law(1.0, 0.0)).item() == pytest.approx(0.6)
    assert overlap(law(1.0, 0.0), law(0.5, 0.5)).item() == 0.5
    assert overlap(law(1.0, 0.0), law(0.0, 1.0)).item() == 0.0


def test_overlap_never_exceeds_one() -> None:
    probs = torch.randn(200, 3000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert probs.sum(-1).max() > 1.0
    assert overlap(probs, probs).max() == 1.0


def test_residual_comes_with_the_sum_that_normalises_it() -> None:  # faults A4
    excess, total = residual(law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3))
    assert (excess / total).tolist() == [1.0, 0.0, 0.0]


def test_residual_that_rounds_to_zero_sums_to_nothing() -> None:  # faults B18
    p = torch.tensor([0.2, 0.3, 0.5])
    q = p.bfloat16().float()
    excess, total = residual(torch.stack((p, p)), torch.stack((q, torch.tensor([0.5, 0.5, 0]))))
    assert total.tolist() == [0.0, 0.5]
    assert excess[1].tolist() == [0.0, 0.0, 0.5]


@given(st.integers(0, 2**31))
def test_accepting_and_correcting_gives_p_exactly(seed) -> None:
    # q min(1, p/q) + (1 - beta) residual = p, the identity of appendix A.1, in float64.
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, SYMBOLS, dtype=torch.float64, generator=generator).mul(3).softmax(-1)
    excess, total = residual(p, q)
    output = torch.minimum(p, q) + (1.0 - overlap(p, q)) * excess / total
    assert output.tolist() == pytest.approx(p.tolist(), abs=1e-14)


# --- accept ------------------------------------------------------------------------------------


def test_a_draft_is_accepted_below_the_ratio_and_not_at_it() -> None:
    p, q = law(0.25, 0.75), law(0.5, 0.5)
    assert accept_one(p, q, 0, 0.4999).num_accepted.tolist() == [1]
    assert accept_one(p, q, 0, 0.5).num_accepted.tolist() == [0]
    assert accept_one(p, q, 1, LAST_UNIFORM).num_accepted.tolist() == [1]


def test_a_token_the_target_excludes_is_rejected_even_at_zero() -> None:  # faults B1
    verdict = accept_one(law(0.0, 1.0), law(1.0, 0.0), 0, 0.0)
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.next_token.tolist() == [1]
    assert not verdict.impossible.any()


def test_a_draft_that_q_excludes_is_reported_as_impossible() -> None:  # faults B1
    assert accept_one(law(0.5, 0.5), law(1.0, 0.0), 1, 0.5).impossible.tolist() == [True]


def test_rejection_draws_from_the_residual_and_acceptance_from_the_next_p() -> None:
    p, q, after = law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3), law(0.0, 0.0, 1.0)
    for last in (0.0, 0.5, LAST_UNIFORM):
        rejected = accept_one(p, q, 1, 0.61, last, after)
        assert (rejected.num_accepted.item(), rejected.next_token.item()) == (0, 0)
        accepted = accept_one(p, q, 1, 0.59, last, after)
        assert (accepted.num_accepted.item(), accepted.next_token.item()) == (1, 2)


def test_temperature_zero_keeps_what_equals_the_argmax() -> None:  # faults A3
    argmax = Sampling(0.0)
    p = standardize(logs(0.6, 0.4), argmax)
    q = standardize(logs(0.45, 0.55), argmax)
    for uniform in (0.0, 0.5, LAST_UNIFORM):
        verdict = accept_one(p, q, 1, uniform, last=uniform)
        assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, 0)
        assert accept_one(p, p, 0, uniform).num_accepted.tolist() == [1]


def test_each_draft_is_looked_up_in_its_own_row_and_position() -> None:  # faults A23
    eye = torch.eye(9)
    target = torch.stack(
        (torch.stack((eye[4], eye[7], eye[1])), torch.stack((eye[7], eye[4], eye[2])))
    )
    drafts = torch.tensor([[4, 7], [4, 7]])
    half = torch.full((2, 2), 0.5, dtype=torch.float64)
    verdict = accept(target, eye[drafts], drafts, torch.tensor([2, 2]), half, half[:, 0])
    assert verdict.num_accepted.tolist() == [2, 0]
    assert verdict.next_token.tolist() == [1, 7]


def test_nothing_behind_the_first_rejection_counts() -> None:  # faults E4
    eye = torch.eye(3)
    matches = torch.tensor([1, 1, 0, 1, 1])
    target = torch.cat((eye[matches], eye[[2]]))[None]
    drafts = torch.ones(1, 5, dtype=torch.int64)
    half = torch.full((1, 5), 0.5, dtype=torch.float64)
    verdict = accept(target, eye[drafts], drafts, torch.tensor([5]), half, half[:, 0])
    assert (verdict.num_accepted.item(), verdict.next_token.item()) == (2, 0)


def test_no_count_means_that_all_were_drafted() -> None:
    p, q = torch.randn(2, 60, 3, 7, generator=torch.Generator().manual_seed(5)).softmax(-1)
    numbers = torch.rand(60, 5, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    drafts = draw(q[:, :2], numbers[:, :2])
    without, counted = (
        accept(p, q[:, :2], drafts, counts, numbers[:, 2:4], numbers[:, 4])
        for counts in (None, torch.full((60,), 2))
    )
    assert set(counted.num_accepted.tolist()) == {0, 1, 2}
    for one, other in zip(without, counted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("padding", [math.nan, 0.25, 0.0])
def test_padding_is_never_looked_at(padding) -> None:
    eye = torch.eye(4)
    target = torch.full((3, 3, 4), padding)
    draft_probs = torch.full((3, 2, 4), padding)
    target[0, 0], target[1, 0], target[1, 1], target[2] = eye[3], eye[0], eye[2], eye[1]
    draft_probs[1, 0], draft_probs[2] = eye[0], eye[1]
    drafts = torch.tensor([[3, 0], [0, 2], [1, 1]])
    half = torch.full((3, 2), 0.5, dtype=torch.float64)
    verdict = accept(target, draft_probs, drafts, torch.tensor([0, 1, 2]), half, half[:, 0])
    assert verdict.num_accepted.tolist() == [0, 1, 2]
    assert verdict.next_token.tolist() == [3, 2, 1]
    assert not (verdict.impossible | verdict.fell_back).any()


def test_equal_laws_are_always_accepted() -> None:  # faults A5, A9
    probs = torch.randn(1000, 2, 8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    uniforms = torch.rand(1000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drafts = draw(probs[:, 0], uniforms[:, 0])[:, None]
    ones = torch.ones(1000, dtype=torch.int64)
    verdict = accept(probs, probs[:, :1], drafts, ones, uniforms[:, 1:2], uniforms[:, 2])
    assert verdict.num_accepted.min() == 1


@given(data=st.data(), rows=st.integers(1, 4), width=st.integers(1, 4))
def test_ids_decide_as_one_hot_laws_do(data, rows, width) -> None:
    def ids(*shape):
        count = math.prod(shape)
        drawn = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        return torch.tensor(drawn).view(shape)

    target, drafts, counts = ids(rows, width + 1), ids(rows, width), ids(rows).clamp(max=width)
    uniforms = torch.full((rows, width), 0.999, dtype=torch.float64)
    hot = torch.eye(3)
    wanted = accept(hot[target], hot[drafts], drafts, counts, uniforms, uniforms[:, 0])
    assert not (wanted.fell_back | wanted.impossible).any()
    for row, count in enumerate(counts.tolist()):
        kept = accept_largest(target[row].tolist(), drafts[row, :count].tolist())
        assert kept == wanted.num_accepted[row]
        assert target[row, kept] == wanted.next_token[row]


def test_the_largest_is_the_lowest_of_a_tie_as_a_law_says() -> None:
    logits = torch.randint(0, 3, (50, 40), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(largest(logits)[0], standardize(logits, Sampling(0.0)).argmax(-1))


def test_a_rounded_q_falls_back_and_is_counted() -> None:  # faults B18
    p = torch.tensor([0.2, 0.3, 0.5])
    verdict = accept_one(p, p.bfloat16().float(), 0, LAST_UNIFORM)
    assert (verdict.num_accepted.item(), verdict.fell_back.item()) == (0, True)


@pytest.mark.parametrize(
    ("drop", "name"),
    [(0, "target"), (1, "draft"), (2, "drafts"), (3, "num"), (4, "uniforms"), (5, "last")],
)
def test_shapes_that_do_not_fit_are_refused(drop, name) -> None:
    half = torch.full((2, 3), 0.5, dtype=torch.float64)
    arguments = [
        torch.full((2, 4, 5), 0.2),
        torch.full((2, 3, 5), 0.2),
        torch.zeros(2, 3, dtype=torch.int64),
        torch.tensor([3, 3]),
        half,
        half[:, 0],
    ]
    accept(*arguments)
    arguments[drop] = arguments[drop][:-1]
    with pytest.raises(ValueError, match="allowed"):
        accept(*arguments)


def test_other_shapes_that_do_not_fit_are_refused() -> None:
    for call in (
        lambda: standardize(torch.tensor(1.0), Sampling()),
        lambda: standardize(torch.empty(2, 0), Sampling()),
        lambda: draw(torch.ones(2, 3), torch.ones(3, dtype=torch.float64)),
        lambda: overlap(torch.ones(2, 3), torch.ones(3)),
        lambda: residual(torch.ones(2, 3), torch.ones(3)),
    ):
        with pytest.raises(ValueError, match="allowed"):
            call()


# --- the whole output law, enumerated ----------------------------------------------------------
# Positions are independent here, so that the law of a whole sequence is a product. `decide` is
# `accept` or a mutant of it.


def random_laws(seed, gamma, sampling):
    """p (gamma + 1, V) and q (gamma, V) under the same sampling, normalised in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(2 * gamma + 1, SYMBOLS, generator=generator)
    probs = standardize(logits, sampling).double()
    probs = probs / probs.sum(-1, keepdim=True)
    return probs[: gamma + 1], probs[gamma + 1 :]


def cases(p, q):
    """Drafts (N, G), accept uniforms (N, G) and weights (N,) that cover all there is.

    Every combination of drafts with positive chance, at the middle of every piece of the exact
    partition [0, p/q), [p/q, 1) of every uniform.
    """
    rows = []
    for drafts in itertools.product(range(SYMBOLS), repeat=len(q)):
        chances = [float(q[i, x]) for i, x in enumerate(drafts)]
        if min(chances) > 0.0:
            cuts = [min(1.0, float(p[i, x]) / float(q[i, x])) for i, x in enumerate(drafts)]
            pieces = [((cut / 2, cut), ((1 + cut) / 2, 1 - cut)) for cut in cuts]
            for chosen in itertools.product(*pieces):
                weight = math.prod(chances) * math.prod(size for _, size in chosen)
                rows.append((drafts, [middle for middle, _ in chosen], weight))
    drafts, uniforms, weights = zip(*(row for row in rows if row[2] > 0.0), strict=True)
    return torch.tensor(drafts), law(*uniforms), law(*weights)


def next_token_law(decide, p, q, drafts, uniforms):
    """Accepted drafts (N,) and the chance of each next token (N, V), by bisection.

    The next token grows with the last uniform: token t begins where the result first exceeds
    t - 1, and 44 halvings put that point within 1e-13.
    """
    num_rows, num_edges = len(drafts), SYMBOLS - 1
    low = torch.zeros(num_rows * num_edges, dtype=torch.float64)
    high = torch.ones_like(low)
    edge = torch.arange(num_edges).repeat(num_rows)
    repeated = [t.repeat_interleave(num_edges, 0) for t in (drafts, uniforms)]
    num_drafted = torch.full_like(edge, q.shape[0])
    both = [t.expand(len(edge), *t.shape) for t in (p, q)]
    for _ in range(44):
        middle = (low + high) / 2
        verdict = decide(*both, repeated[0], num_drafted, repeated[1], middle)
        beyond = verdict.next_token > edge
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    ends = torch.nn.functional.pad(high.view(num_rows, num_edges), (1, 1))
    ends[:, -1] = 1.0
    assert not verdict.impossible.any()
    return verdict.num_accepted[::num_edges], ends.diff(dim=1)


def sequence_law(decide, p, q):
    """The law of gamma + 1 tokens, (V, ..., V): one round, then the target alone."""
    drafts, uniforms, weights = cases(p, q)
    num_accepted, next_law = next_token_law(decide, p, q, drafts, uniforms)
    total = torch.zeros((SYMBOLS,) * len(p), dtype=torch.float64)
    for row, count in enumerate(num_accepted.tolist()):
        tail = weights[row] * next_law[row]
        for following in p[count + 1 :]:
            tail = tail[..., None] * following
        total[tuple(drafts[row, :count])] += tail
    return total


def target_law(p):
    product = p[0]
    for following in p[1:]:
        product = product[..., None] * following
    return product


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("sampling", OPTIONS, ids=str)
def test_one_round_leaves_the_targets_law_unchanged(sampling, gamma) -> None:
    p, q = random_laws(gamma, gamma, sampling)
    assert torch.allclose(sequence_law(accept, p, q), target_law(p), rtol=0, atol=1e-11)


@pytest.mark.parametrize("sampling", OPTIONS, ids=str)
def test_alpha_is_the_overlap(sampling) -> None:
    p, q = random_laws(4, 2, sampling)
    drafts, uniforms, weights = cases(p, q)
    num_accepted, _ = next_token_law(accept, p, q, drafts, uniforms)
    first = weights[num_accepted >= 1].sum().item()
    assert first == pytest.approx(overlap(p[0], q[0]).item(), abs=1e-12)
    both = weights[num_accepted >= 2].sum().item()
    assert both == pytest.approx(first * overlap(p[1], q[1]).item(), abs=1e-12)


# --- mutants -----------------------------------------------------------------------------------


def accept_always(target, draft, drafts, num, uniforms, last):
    return accept(target, draft, drafts, num, torch.zeros_like(uniforms), last)


def p_and_q_swapped(target, draft, drafts, num, uniforms, last):
    swapped = torch.cat((draft, target[:, -1:]), dim=1)
    return accept(swapped, target[:, :-1], drafts, num, uniforms, last)


def another_q(target, draft, drafts, num, uniforms, last):
    return accept(target, draft.sqrt().softmax(-1), drafts, num, uniforms, last)


def residual_is_p(target, draft, drafts, num, uniforms, last):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.sampling.residual", lambda p, q: (p, p.sum(-1)))
        return accept(target, draft, drafts, num, uniforms, last)


def one_match_instead_of_rejection(target, draft, drafts, num, uniforms, last):
    """For one draft: keep it if it equals a sample of the target's own, else emit that sample."""
    own = draw(target[:, 0], uniforms[:, 0])
    kept = own == drafts[:, 0]
    verdict = accept(target, draft, drafts, num, uniforms, last)
    after = draw(target[:, 1], last)
    return verdict._replace(num_accepted=kept.long(), next_token=torch.where(kept, after, own))


MUTANTS = [accept_always, p_and_q_swapped, another_q, residual_is_p]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_enumeration_catches_the_mutant(mutant) -> None:
    p, q = random_laws(2, 2, Sampling(1.0))
    assert (sequence_law(mutant, p, q) - target_law(p)).abs().sum() > 0.01


# --- simulation: each gate has a false alarm of 1e-4 per seed -------------------------------------


P, Q = law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3)


def simulate(decide, p, q, num_rounds=10_000, seed=0):
    """First tokens and kept drafts, as counts, of rounds of one draft that is drawn from q."""
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(num_rounds, 3, generator=generator, dtype=torch.float64)
    drafts = draw(q.expand(num_rounds, -1), uniforms[:, 0])[:, None]
    verdict = decide(
        p.expand(num_rounds, 2, -1),
        q.expand(num_rounds, 1, -1),
        drafts,
        torch.ones(num_rounds, dtype=torch.int64),
        uniforms[:, 1:2],
        uniforms[:, 2],
    )
    kept = verdict.num_accepted == 1
    first = torch.where(kept, drafts[:, 0], verdict.next_token)
    return Counter(first.tolist()), Counter(kept.tolist())


def test_simulated_tokens_have_the_targets_law_and_drafts_the_overlaps_rate() -> None:  # faults A12
    tokens, kept = simulate(accept, P, Q)
    assert_same_distribution(tokens, dict(enumerate(P.tolist())))
    assert_same_distribution(kept, {True: 0.7, False: 0.3})


@pytest.mark.parametrize("mutant", MUTANTS)
def test_simulation_catches_the_mutant(mutant) -> None:
    tokens, _ = simulate(mutant, P, Q)
    with pytest.raises(AssertionError, match="under the law"):
        assert_same_distribution(tokens, dict(enumerate(P.tolist())))


def test_matching_has_the_right_law_and_the_wrong_alpha() -> None:  # faults A9
    half = law(0.5, 0.5)
    tokens, kept = simulate(one_match_instead_of_rejection, half, half)
    assert_same_distribution(tokens, {0: 0.5, 1: 0.5})
    with pytest.raises(AssertionError, match="under the law"):
        assert_same_distribution(kept, {True: 1.0})
    assert_same_distribution(simulate(accept, half, half)[1], {True: 1.0})


def test_q_must_be_what_the_draft_was_drawn_from() -> None:  # faults A1
    p, proposed, claimed = law(0.6, 0.4), law(1.0, 0.0), law(0.8, 0.2)

    def claim(target, draft, *rest):
        return accept(target, claimed.expand_as(draft), *rest)

    right, _ = simulate(accept, p, proposed, 20_000)
    assert_same_distribution(right, {0: 0.6, 1: 0.4})
    wrong, _ = simulate(claim, p, proposed, 20_000)
    assert_same_distribution(wrong, {0: 0.75, 1: 0.25})
    with pytest.raises(AssertionError, match="under the law"):
        assert_same_distribution(wrong, {0: 0.6, 1: 0.4})


def test_a_token_outside_the_targets_top_p_never_appears() -> None:  # faults A10
    p = standardize(P.log(), Sampling(top_p=0.8)).double()
    tokens, _ = simulate(accept, p, Q, 50_000)
    assert set(tokens) == {0, 1}
    assert_same_distribution(tokens, {0: 0.625, 1: 0.375})


def test_temperature_one_samples() -> None:  # faults A17
    probs = standardize(torch.zeros(20, 2), Sampling(1.0))
    seeds = [torch.Generator().manual_seed(seed) for seed in range(20)]
    uniforms = torch.cat([torch.rand(1, generator=g, dtype=torch.float64) for g in seeds])
    assert set(draw(probs, uniforms).tolist()) == {0, 1}
