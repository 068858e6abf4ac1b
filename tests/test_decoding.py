"""The loop: its output law by enumeration, its counts by scripts, its caches by fresh runs."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import pytest
import torch
from checks import assert_same_distribution
from fakes import EOS, ScriptedModel, TableModel, constant_table, random_table

from specbench.decoding import (
    ImpossibleDraft,
    NonFiniteLogits,
    Rules,
    decode,
    law,
    loop,
    rounds,
    uniforms,
)
from specbench.records import Limits, Sampling
from specbench.sampling import Verdict, accept, draw, standardize

VOCAB = 5
NUM_OUTPUTS = 6_000
OPTIONS = [
    Sampling(1.0),
    Sampling(0.5),
    Sampling(1.7),
    Sampling(0.0),
    Sampling(1.0, top_k=3),
    Sampling(1.0, top_p=0.8),
    Sampling(0.7, top_k=4, top_p=0.9),
]


def run(target, draft, gamma, sampling, limits, num_rows, seed=0, rule=accept):
    """`num_rows` independent outputs of one batched call."""
    ids = [str(row) for row in range(num_rows)]
    uniform = uniforms(seed, "test", ids, limits.max_new_tokens, gamma)
    prompts = [[0]] * num_rows
    return decode(target, draft, gamma, prompts, sampling, limits, uniform, rule=rule)


def exact_law(target: TableModel, sampling: Sampling, limits: Limits) -> dict[tuple, float]:
    """The probability of every output of the target alone, by recursion over its table."""
    law_of: dict[tuple, float] = {}

    def extend(output: tuple[int, ...], probability: float) -> None:
        ended = output[-1:] == (EOS,) or len(output) == limits.max_new_tokens
        if ended:
            law_of[output] = law_of.get(output, 0.0) + probability
            return
        before, last = (VOCAB, VOCAB, *output)[-2:]
        logits = target.logits[before, last].clone()
        if len(output) < limits.min_new_tokens:
            logits[EOS] = -math.inf
        probs = standardize(logits, sampling).double()
        for token in range(VOCAB):
            if probs[token] > 0:
                extend((*output, token), probability * float(probs[token]))

    extend((), 1.0)
    return law_of


def outputs(decoded) -> Counter:
    return Counter(tuple(row) for row in decoded.tokens)


@pytest.mark.parametrize("sampling", OPTIONS, ids=str)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_output_law_is_the_targets_own(sampling: Sampling, gamma: int) -> None:
    # Outputs of up to 4 tokens; false alarm 1e-4 for each of the 21 cases.
    target, draft = TableModel(random_table(1)), TableModel(random_table(2))
    limits = Limits(4)
    decoded = run(target, draft, gamma, sampling, limits, NUM_OUTPUTS, seed=gamma)
    assert_same_distribution(outputs(decoded), exact_law(target, sampling, limits))


class StartsWithZero(TableModel):
    def start(self, prompts, capacity):
        state = super().start(prompts, capacity)
        state.first_tokens.zero_()
        return state


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_model_begins_with_its_own_first_token(temperature: float) -> None:
    target, sampling, limits = TableModel(random_table(1)), Sampling(temperature), Limits(3)
    decoded = run(target, StartsWithZero(random_table(2)), 2, sampling, limits, NUM_OUTPUTS)
    assert_same_distribution(outputs(decoded), exact_law(target, sampling, limits))


@pytest.mark.parametrize("gamma", [0, 1, 3])
def test_ids_alone_give_the_greedy_output_of_one_hot_laws(gamma: int) -> None:
    # At T = 0 no law is made; any rule but `accept` itself is still shown the one-hot arrays.
    limits = Limits(9, min_new_tokens=2)
    runs = []
    for rule in (accept, functools.partial(accept)):
        target = TableModel(random_table(1) + 1.5 * random_table(2))
        draft = TableModel(random_table(2)) if gamma else None
        decoded = run(target, draft, gamma, Sampling(0.0), limits, 30, rule=rule)
        runs.append((decoded.tokens, decoded.stop_reasons, decoded.rounds))
    assert runs[0] == runs[1]


def test_output_law_with_min_length() -> None:
    target, draft = TableModel(random_table(3)), TableModel(random_table(4))
    limits = Limits(4, min_new_tokens=2)
    decoded = run(target, draft, 2, Sampling(1.0), limits, NUM_OUTPUTS)
    # EOS may be the first token behind the minimum, and it is counted.
    assert min(len(row) for row in decoded.tokens) == 3
    assert_same_distribution(outputs(decoded), exact_law(target, Sampling(1.0), limits))


def _accept_always(target_probs, draft_probs, drafts, num_drafted, *uniform):
    verdict = accept(target_probs, draft_probs, drafts, num_drafted, *uniform)
    row = torch.arange(len(drafts))
    every = torch.full_like(row, drafts.shape[1]) if num_drafted is None else num_drafted
    return Verdict(every, draw(target_probs[row, every], uniform[1]), *verdict[2:])


def _residual_is_p(target_probs, draft_probs, drafts, num_drafted, *uniform):
    verdict = accept(target_probs, draft_probs, drafts, num_drafted, *uniform)
    row = torch.arange(len(drafts))
    return verdict._replace(next_token=draw(target_probs[row, verdict.num_accepted], uniform[1]))


def _swapped(target_probs, draft_probs, drafts, num_drafted, *uniform):
    swapped = torch.cat((draft_probs, target_probs[:, -1:]), dim=1)
    return accept(swapped, target_probs[:, :-1], drafts, num_drafted, *uniform)


def _wrong_q(target_probs, draft_probs, drafts, num_drafted, *uniform):
    flat = draft_probs.sqrt()
    flat = flat / flat.sum(dim=-1, keepdim=True)
    return accept(target_probs, flat, drafts, num_drafted, *uniform)


@pytest.mark.parametrize("mutant", [_accept_always, _residual_is_p, _swapped, _wrong_q])
def test_law_check_catches_wrong_rules(mutant) -> None:
    target, draft = TableModel(random_table(1)), TableModel(random_table(2))
    decoded = run(target, draft, 2, Sampling(1.0), Limits(4), NUM_OUTPUTS, rule=mutant)
    with pytest.raises(AssertionError):
        assert_same_distribution(outputs(decoded), exact_law(target, Sampling(1.0), Limits(4)))


def test_law_check_catches_a_draft_cache_one_short(monkeypatch: pytest.MonkeyPatch) -> None:
    # The draft forgets to be fed its own last token after a fully accepted round. The law
    # stands (any draft is valid); what suffers is acceptance, which a copy of the target shows.
    copy = TableModel(random_table(1))
    decoded = run(TableModel(random_table(1)), copy, 2, Sampling(1.0), Limits(8), 200)
    assert all(r.num_accepted == r.num_tested for r in decoded.rounds)

    def one_short(player, batch_rows, count):
        if count == 2:  # a hole where the last accepted draft should be
            player.state.lengths = [length + 1 for length in player.state.lengths]
        return original(player, batch_rows, 1)

    original = rounds._last_tokens
    monkeypatch.setattr(rounds, "_last_tokens", one_short)
    copy = TableModel(random_table(1))
    mutant = run(TableModel(random_table(1)), copy, 2, Sampling(1.0), Limits(8), 200)
    assert any(r.num_accepted != r.num_tested for r in mutant.rounds)


def test_each_row_is_what_it_would_be_alone() -> None:
    target, draft = TableModel(random_table(5)), TableModel(random_table(6))
    together = run(target, draft, 3, Sampling(1.0), Limits(9), 40)
    for row in range(40):
        uniform = uniforms(0, "test", [str(row)], 9, 3)
        alone = decode(target, draft, 3, [[0]], Sampling(1.0), Limits(9), uniform)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.stop_reasons[0] == together.stop_reasons[row]
        for name in ("num_drafted", "num_accepted", "num_tested", "num_committed"):
            of_row = [getattr(r, name)[row] for r in together.rounds]
            assert of_row[: len(alone.rounds)] == [getattr(r, name)[0] for r in alone.rounds]
            assert not any(of_row[len(alone.rounds) :])


def counts(decoded) -> list[tuple[int, int, int, int]]:
    """(drafted, accepted, tested, committed) of the only row, round by round."""
    return [
        (r.num_drafted[0], r.num_accepted[0], r.num_tested[0], r.num_committed[0])
        for r in decoded.rounds
    ]


def greedy(target_script, draft_script, gamma, max_new, eos=EOS, min_new=0):
    target, draft = ScriptedModel(target_script, eos=eos), ScriptedModel(draft_script, eos=eos)
    limits = Limits(max_new, min_new)
    return run(target, draft, gamma, Sampling(0.0), limits, 1), target, draft


def test_worked_set_of_accepted_runs() -> None:
    # gamma = 3, accepted 3, 2, 1, 0: tested 9, accepted 6, committed 10 in 4 rounds.
    target = [2, 3, 4, 5, 6, 7, 8, 9, 2, 3]
    draft = [2, 3, 4, 0, 6, 7, 0, 9, 0, 0]
    decoded, *_ = greedy(target, draft, 3, 10, eos=None)
    assert decoded.tokens == [target]
    # The limit leaves room for two drafts in the third round and for none in the fourth.
    assert counts(decoded) == [(3, 3, 3, 4), (3, 2, 3, 3), (2, 1, 2, 2), (0, 0, 0, 1)]


def test_eos_inside_an_accepted_block_ends_the_row_there() -> None:
    # Block a, b, EOS, c accepted with a bonus d: output a b EOS, committed 3, tested 3.
    decoded, *_ = greedy([4, 5, EOS, 6, 7], [4, 5, EOS, 6, 7], 4, 20)
    assert decoded.tokens == [[4, 5, EOS]]
    assert decoded.stop_reasons == ["eos"]
    assert counts(decoded) == [(4, 3, 3, 3)]


def test_eos_as_the_targets_own_token() -> None:
    decoded, *_ = greedy([4, EOS, 6], [4, 5, 6], 2, 20)
    assert decoded.tokens == [[4, EOS]]
    assert counts(decoded) == [(2, 1, 2, 2)]


def test_a_rejected_eos_goes_on() -> None:
    decoded, *_ = greedy([4, 5, 6, EOS], [4, EOS, 6, EOS], 2, 20)
    assert decoded.tokens == [[4, 5, 6, EOS]]


def test_limit_is_exact_and_the_last_round_drafts_less() -> None:
    decoded, target, draft = greedy([2] * 9, [2] * 9, 4, 2, eos=None)
    assert decoded.tokens == [[2, 2]]
    assert decoded.stop_reasons == ["length"]
    assert counts(decoded) == [(1, 1, 1, 2)]
    assert target.widths == [2]
    assert draft.widths == [1]


def test_max_new_tokens_of_one_never_drafts() -> None:
    decoded, _, draft = greedy([2, 3], [2, 3], 4, 1, eos=None)
    assert decoded.tokens == [[2]]
    assert counts(decoded) == [(0, 0, 0, 1)]
    assert draft.widths == []


def test_eos_on_the_last_allowed_token_is_eos() -> None:
    decoded, *_ = greedy([2, EOS], [2, EOS], 4, 2)
    assert decoded.stop_reasons == ["eos"]


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("pattern", [*itertools.product([0, 1], repeat=5)])
def test_greedy_output_and_calls_for_every_pattern(gamma: int, pattern: tuple[int, ...]) -> None:
    script = [2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5]
    proposed = [token if pattern[i % 5] else 0 for i, token in enumerate(script)]
    decoded, target, draft = greedy(script, proposed, gamma, len(script), eos=None)
    assert decoded.tokens == [script]
    drafted = [r.num_drafted[0] for r in decoded.rounds]
    assert target.widths == [count + 1 for count in drafted]
    assert len(draft.widths) == sum(drafted)
    assert target.num_starts == draft.num_starts == 1
    # The draft is fed two tokens exactly in the round after a fully accepted one.
    first_calls = [draft.widths[sum(drafted[:i])] for i, count in enumerate(drafted) if count]
    full = [r.num_accepted[0] == r.num_drafted[0] for r in decoded.rounds]
    assert first_calls == [1] + [2 if was else 1 for was in full[: len(first_calls) - 1]]
    assert sum(r.num_committed[0] for r in decoded.rounds) == len(script)


def test_baseline_commits_one_token_a_call() -> None:
    target = ScriptedModel([4, 5, EOS])
    decoded = run(target, None, 0, Sampling(0.0), Limits(9), 1)
    assert decoded.tokens == [[4, 5, EOS]]
    assert target.widths == [1, 1, 1]
    assert counts(decoded) == [(0, 0, 0, 1)] * 3


def test_same_model_is_always_accepted() -> None:
    for sampling in OPTIONS:
        target, draft = TableModel(random_table(7)), TableModel(random_table(7))
        decoded = run(target, draft, 3, sampling, Limits(12), 500)
        assert all(r.num_accepted == r.num_tested for r in decoded.rounds), sampling


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_target_logits_stop_with_role_and_position(bad, temperature) -> None:
    target = ScriptedModel([2, 3, 4, 5], eos=None)
    extend = target.extend

    def poisoned(state, tokens):
        start = state.lengths[0]
        logits = extend(state, tokens)
        if start <= 2 < start + tokens.shape[1]:
            logits[0, 2 - start, 6] = bad
        return logits

    target.extend = poisoned
    for draft, gamma in [(None, 0), (ScriptedModel([2, 3, 4, 5], eos=None), 3)]:
        with pytest.raises(NonFiniteLogits, match=r"position 2, target") as caught:
            run(target, draft, gamma, Sampling(temperature), Limits(4), 1)
        assert (caught.value.role, caught.value.position) == ("target", 2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_draft_logits_name_the_draft(temperature) -> None:
    draft = TableModel(constant_table([math.nan] * VOCAB))
    with pytest.raises(NonFiniteLogits, match=r"position 0, draft"):
        run(TableModel(random_table(1)), draft, 2, Sampling(temperature), Limits(4), 1)


def test_impossible_draft_raises() -> None:
    def lying(*args):
        verdict = accept(*args)
        return verdict._replace(impossible=torch.ones_like(verdict.impossible))

    target, draft = TableModel(random_table(1)), TableModel(random_table(2))
    with pytest.raises(ImpossibleDraft):
        run(target, draft, 2, Sampling(1), Limits(4), 1, rule=lying)


def test_zero_probability_tokens_never_come_out() -> None:
    logits = [0.0, -math.inf, 0.0, -math.inf, 0.0]
    target, draft = TableModel(constant_table(logits)), TableModel(constant_table([0.0] * VOCAB))
    decoded = run(target, draft, 3, Sampling(1.0), Limits(10), 1_000)
    assert {token for row in decoded.tokens for token in row} == {0, 2, 4}


def test_min_length_is_the_same_on_both_sides() -> None:
    # A copy of the target must be accepted everywhere, before and behind the minimum.
    table = constant_table([0.0, 3.0, 0.0, 0.0, 0.0])
    decoded = run(TableModel(table), TableModel(table), 3, Sampling(1.0), Limits(8, 5), 200)
    assert min(len(row) for row in decoded.tokens) == 6
    assert all(r.num_accepted == r.num_tested for r in decoded.rounds)


def test_law_forbids_eos_by_position() -> None:
    rules = Rules(Sampling(1.0), Limits(8, min_new_tokens=2), EOS)
    probs = law(torch.zeros(2, 3, VOCAB), [0, 1], rules)
    assert (probs[..., EOS] > 0).tolist() == [[False, False, True], [False, True, True]]


def test_first_token_has_the_same_law_with_and_without_speculation() -> None:
    target, draft = TableModel(random_table(8)), TableModel(random_table(9))
    expected = standardize(target.logits[VOCAB, VOCAB], Sampling(1.0)).double()
    for model, gamma in ((None, 0), (draft, 3)):
        decoded = run(target, model, gamma, Sampling(1.0), Limits(3), 5_000)
        first = Counter(row[0] for row in decoded.tokens)
        assert_same_distribution(first, {i: float(expected[i]) for i in range(VOCAB)})


def test_streams_depend_on_seed_cell_and_prompt_alone() -> None:
    one = uniforms(0, "cell", ["a", "b"], 3, 2)
    assert one.shape == (2, 3, 5)
    assert one.dtype == torch.float64
    assert torch.equal(one[1], uniforms(0, "cell", ["b"], 3, 2)[0])
    for other in (uniforms(1, "cell", ["b"], 3, 2), uniforms(0, "tell", ["b"], 3, 2)):
        assert not torch.equal(one[1], other[0])
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize(
    ("draft", "gamma", "limits", "rows", "named"),
    [
        (True, 0, Limits(4), 1, "gamma 0"),
        (False, 2, Limits(4), 1, "gamma 2"),
        (False, 0, Limits(0), 1, "max_new_tokens 0"),
        (False, 0, Limits(9), 1, "uniform"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(draft, gamma, limits, rows, named) -> None:
    table = TableModel(random_table(1))
    with pytest.raises(ValueError, match=named):
        loop.decode(
            table, table if draft else None, gamma, [[0]] * rows, Sampling(1.0), limits,
            uniforms(0, "c", ["a"], 4, gamma),
        )  # fmt: skip
