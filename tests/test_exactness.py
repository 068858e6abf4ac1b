"""The gate: right decoders pass at stated odds, every wrong one is caught, power is as stated."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from fakes import EOS, Nudged, TableModel, constant_table, random_table

from specbench.measure.exactness import (
    EXACT,
    UNDERPOWERED,
    WRONG,
    Effort,
    check,
    check_greedy,
    check_law,
)
from specbench.measure.exactness.behind import Behind
from specbench.measure.exactness.cells import TokenLaw, build_cells
from specbench.measure.exactness.greedy import NEAR_TIE, TIE, examine, tolerance
from specbench.measure.exactness.prefixes import choose_prefixes
from specbench.measure.exactness.reference import forced_logits
from specbench.measure.exactness.wrong_rules import accept_always, residual_is_target
from specbench.models import LeanT5
from specbench.models.t5_weights import fold
from specbench.prompts import EncodedPrompt
from specbench.records import Limits, Sampling
from specbench.sampling import accept
from specbench.statistics import detectable_variation, p_value, pearson

# Every law test here has a fixed seed; a right decoder fails one seed in 10,000.
ALARM = 1e-4
ITEMS = [EncodedPrompt(f"p{i}", (2,) * (i + 1)) for i in range(4)]
T0, T1 = Sampling(0.0), Sampling(1.0)


def pair(seed: int = 1, vocab: int = 12) -> tuple[TableModel, TableModel]:
    return (
        TableModel(random_table(seed, vocab), "target"),
        TableModel(random_table(seed + 1, vocab), "draft"),
    )


def law_check(target, draft, num_draws=160, sampling=T1, rule=accept, seed=0):
    outputs = [[2, 3, 4, 0, 2, 4], [3, 4], [0, 3, 2], [EOS]]
    return check_law(target, draft, ITEMS, outputs, sampling, 4, num_draws, ALARM, seed, rule)


def swapped(target_probs, draft_probs, drafts, num_drafted, *uniform):
    p = torch.cat((draft_probs, target_probs[:, -1:]), dim=1)
    return accept(p, target_probs[:, :-1], drafts, num_drafted, *uniform)


def wrong_q(target_probs, draft_probs, drafts, num_drafted, *uniform):
    flat = draft_probs.sqrt()
    flat = flat / flat.sum(dim=-1, keepdim=True)
    return accept(target_probs, flat, drafts, num_drafted, *uniform)


@pytest.mark.parametrize(
    "sampling", [T1, Sampling(0.7), Sampling(1.0, top_k=5), Sampling(1.3, top_p=0.9)], ids=str
)
def test_the_right_decoder_passes_and_the_built_in_wrong_ones_do_not(sampling) -> None:
    found = law_check(*pair(), sampling=sampling)
    assert found.status == EXACT, found.sentence
    assert {control.caught for control in found.controls} == {True}
    assert len(found.controls) == 2
    assert found.num_accepted > 100
    assert found.num_rejected > 100
    assert 0.0 < found.detectable_variation < found.detectable_at_one <= 1.0
    assert "mismatch" not in found.sentence


@pytest.mark.parametrize("rule", [accept_always, residual_is_target, swapped, wrong_q])
def test_wrong_rules_are_caught(rule) -> None:
    found = law_check(*pair(), num_draws=400, rule=rule)
    assert found.status == WRONG
    assert f"alarm below {ALARM:.1g}" in found.sentence


def test_a_rule_that_keeps_filtered_tokens_is_caught_at_once() -> None:
    # A target that allows two tokens, a draft that allows all: any third token is impossible.
    target = TableModel(constant_table([0.0, -math.inf, 0.0, -math.inf, -math.inf]), "target")
    draft = TableModel(constant_table([0.0] * 5), "draft")
    found = law_check(target, draft, num_draws=100, rule=accept_always)
    assert found.status == WRONG
    assert "impossible tokens" in found.sentence


def test_too_few_draws_are_no_proof() -> None:
    found = law_check(*pair(), num_draws=8)
    assert found.status == UNDERPOWERED
    assert "more draws" in found.sentence


def test_a_draft_that_always_agrees_is_no_proof() -> None:
    target, _ = pair()
    found = law_check(target, TableModel(target.logits, "copy"))
    assert (found.status, found.prefixes) == (UNDERPOWERED, ())
    assert check_greedy(target, target, ITEMS, T0, Limits(8), (2,), 2).status == UNDERPOWERED


@pytest.mark.parametrize("nudge", [1.5, 0.0])
def test_a_wrong_block_forward_is_not_taken_for_rounding(nudge) -> None:
    # One call a token and one call for all of them differ by far more than float32 explains.
    draft = TableModel(constant_table([0.0, 0.0, 0.0, 3.0, 0.0]), "draft")
    found = law_check(Nudged(0.5, nudge), draft)
    assert found.status == (WRONG if nudge else EXACT), found.sentence


def test_a_target_cache_that_is_not_rolled_back_is_caught() -> None:
    class Stale(TableModel):
        """Answers as if the token before the last were the one it saw there first."""

        def extend(self, state, tokens):
            if not hasattr(state, "seen"):
                state.seen = torch.full_like(state.memory, -1)
            start = list(state.lengths)
            logits = super().extend(state, tokens).clone()
            for row, length in enumerate(start):
                for column in range(tokens.shape[1]):
                    at = length + column
                    if state.seen[row, at] < 0:
                        state.seen[row, at] = tokens[row, column]
                    before = int(state.seen[row, at - 1]) if at else self.vocab_size
                    logits[row, column] = self.logits[before, tokens[row, column]]
            return logits

    right, _ = pair()
    target = Stale(right.logits, "stale")
    # Alike enough that drafts behind a replaced token are accepted.
    draft = TableModel(right.logits + random_table(9, 12, scale=0.7), "draft")
    target.eos_token = draft.eos_token = None
    found = check_greedy(target, draft, ITEMS, T0, Limits(24), (2, 5), 1)
    assert found.status == WRONG
    wrong = next(item for item in found.differences if item.kind == WRONG)
    assert wrong.gap > wrong.tolerance
    assert f"logit gap {wrong.gap:.2g}" in found.sentence


def lean(model, name: str) -> LeanT5:
    folded = fold(model, tiny.PIECES)
    return LeanT5(
        name, folded, vocab_size=tiny.PIECES, eos_token=None, start_token=0, dtype="float32"
    )


# Seeds whose greedy outputs are no single repeated token, which would tell nothing.
@pytest.mark.parametrize(("layout", "seed"), [("1.0", 1), ("1.0", 2), ("1.1", 0)])
def test_tiny_t5_passes_and_its_wrong_cache_does_not(layout: str, seed: int) -> None:
    network, noisy = tiny.t5(layout, seed), tiny.t5(layout, seed)
    for parameter in noisy.parameters():
        parameter.add_(0.3 * parameter.std() * torch.randn_like(parameter))
    target, draft = lean(network, "target"), lean(noisy, "draft")
    items = [EncodedPrompt(f"p{i}", (5 + i, 6, 7 * i + 4, 1)) for i in range(4)]
    effort = Effort(4, 3, 64, (2, 5), 16)
    samplings = [T0, T1] if seed == 1 else [T0]
    report = check(target, [draft], items, samplings, Limits(16), effort)
    assert report.status == EXACT, report.failures
    rollback = target.rollback

    def one_too_many(state, lengths):
        cut = [then < now for then, now in zip(lengths, state.lengths, strict=True)]
        rollback(state, [max(0, then - by) for then, by in zip(lengths, cut, strict=True)])

    target.rollback = one_too_many
    found = check_greedy(target, draft, items, T0, Limits(16), (2, 5), 4)
    assert found.status == WRONG
    assert all(item.gap > item.tolerance for item in found.differences if item.kind == WRONG)


def test_greedy_right_passes_with_the_wrong_one_caught() -> None:
    target, draft = pair()
    found = check_greedy(target, draft, ITEMS, T0, Limits(12), (2, 5), 4)
    assert found.status == EXACT, found.sentence
    assert found.differences == ()
    assert found.num_outputs == 4 * 2 + 4  # at both gammas, and all in one batch
    assert found.caught.kind == WRONG


def test_greedy_catches_a_target_that_is_wrong_in_batches_only() -> None:
    target, draft = pair()
    extend = target.extend

    def muddled(state, tokens):
        logits = extend(state, tokens)
        return logits.roll(1, dims=-1) if len(tokens) > 1 else logits

    target.extend = muddled
    assert check_greedy(target, draft, ITEMS, T0, Limits(12), (2, 5), 4).status == WRONG
    assert check_greedy(target, draft, ITEMS, T0, Limits(12), (2, 5), 1).status == EXACT


@pytest.mark.parametrize(
    ("gap", "nudge", "dtype", "kind"),
    [
        (0.0, 1e-5, "float32", NEAR_TIE),
        (1e-5, 3e-5, "float32", NEAR_TIE),
        (0.01, 0.02, "float32", WRONG),
        (0.5, 0.6, "float32", WRONG),
        (0.02, 0.05, "bfloat16", NEAR_TIE),
        (0.5, 0.6, "bfloat16", WRONG),
        (0.02, 0.05, "float16+float32", NEAR_TIE),
    ],
)
def test_first_differences_are_classed_by_their_gap(gap, nudge, dtype, kind) -> None:
    target = Nudged(gap, nudge, dtype)
    draft = TableModel(constant_table([0.0, 0.0, 0.0, 9.0, 0.0]), "draft")
    found = check_greedy(target, draft, ITEMS[:1], T0, Limits(6), (2,), 1)
    assert [difference.kind for difference in found.differences] == [kind]
    difference = found.differences[0]
    assert difference.gap == pytest.approx(max(gap, nudge - gap), abs=1e-6)
    assert (difference.target_token, difference.speculative_token) == (2, 3)
    assert [token for token, _ in difference.top2_alone] == [2, 3]
    assert f"gap {difference.gap:.2g}" in found.sentence
    assert (found.status == WRONG) == (kind == WRONG)


def test_equal_logits_are_a_tie_and_an_output_that_ended_is_wrong() -> None:
    target = TableModel(constant_table([0.0, -9.0, 4.0, 4.0, 0.0]))
    tie = examine(target, ITEMS[0], 2, [2, 2, 2], [2, 3, 2])
    assert (tie.kind, tie.gap, tie.position) == (TIE, 0.0, 1)
    ended = examine(target, ITEMS[0], 2, [2, 2, 2], [2, 2])
    assert (ended.kind, ended.gap, ended.speculative_token) == (WRONG, None, None)
    assert examine(target, ITEMS[0], 2, [2, 2], [2, 2]) is None


def test_no_dtype_excuses_half_a_logit() -> None:
    assert tolerance("float32", 10.0) == pytest.approx(1000 * 2**-23 * 10)
    assert tolerance("bfloat16", 8.0) == pytest.approx(4 * 2**-7 * 8)
    assert tolerance("float16+float32(wo)", 10.0) == pytest.approx(16 * 2**-10 * 10)
    assert tolerance("bfloat16", 1000.0) < 0.5


def test_a_model_behind_prefixes_says_what_a_fresh_one_says() -> None:
    target, _ = pair()
    prefixes = [(), (4,), (5, 6, 7)]
    behind = Behind(target, [(2,)] * 3, prefixes, room=4)
    for _ in range(2):  # a second start forgets what followed
        state = behind.start([(2,)] * 3, 4)
        behind.extend(state, state.first_tokens[:, None])
        behind.extend(state, torch.tensor([[3, 4], [3, 4], [3, 4]]))
        behind.rollback(state, [2, 2, 2])
        logits = behind.extend(state, torch.tensor([[5], [5], [5]]))[:, -1]
        for row, prefix in enumerate(prefixes):
            fresh = forced_logits(target, (2,), [[*prefix, 3, 5]])[0, -1]
            assert torch.equal(logits[row], fresh)


def test_prefixes_are_where_a_wrong_residual_shows_most() -> None:
    target, draft = pair()
    outputs = [[2, 3, 4, 5], [6, 7, 8], [9, 10], [EOS]]
    found = choose_prefixes(target, draft, ITEMS, outputs, T1, 3)
    assert len(found) == 3
    assert all(0.05 <= prefix.overlap <= 0.95 for prefix in found)
    everywhere = choose_prefixes(target, draft, ITEMS, outputs, T1, 100)
    assert max(prefix.contrast for prefix in everywhere) == found[-1].contrast


# A law with a long tail, a draft that prefers the tail, and 500 draws.
P = np.array([0.4, 0.2, 0.1, *[0.3 / 60] * 60])
Q = np.array([0.1, 0.1, 0.1, *[0.7 / 60] * 30, *[0.0] * 30])
N = 500


def tail_cells(num_draws=N):
    possible = np.ones(len(P), dtype=bool)
    one = TokenLaw(P, Q, possible)
    return build_cells(one, {0: one}, num_draws)


def test_cells_expect_enough_and_share_the_tail_by_side() -> None:
    cells = tail_cells()
    assert (N * cells.probs >= 10).all()
    assert cells.probs.sum() == pytest.approx(1.0)
    assert cells.masses(P, {0: P}) == pytest.approx(cells.probs)
    assert cells.first[3] != cells.first[40]  # tail tokens on either side
    assert cells.second[0][1] not in cells.first[1:]
    counts, num_impossible = cells.count([(1, 5), (0, 1), (0, 1), (2,)])
    assert (counts.sum(), num_impossible) == (4, 0)


def test_false_alarms_and_power_are_as_stated() -> None:
    # 4,000 simulated tests each. The law that is hardest to see at a total variation d: half of
    # the mass in cells that gain, half in cells that lose, every cell by the same fraction.
    cells, rng, runs, alarm = tail_cells(), np.random.default_rng(0), 4000, 0.01
    freedom = len(cells.probs) - 1

    def alarms(law) -> float:
        draws = rng.multinomial(N, law, size=runs)
        return float(np.mean([p_value(pearson(row, cells.probs), freedom, 0.0) < alarm
                              for row in draws]))  # fmt: skip

    assert alarms(cells.probs) == pytest.approx(alarm, abs=0.006)
    variation = detectable_variation(N, freedom, 0.0, alarm, power=0.99)
    signs = np.where(np.arange(freedom + 1) % 2, 1.0, -1.0)
    up, down = cells.probs[signs > 0].sum(), cells.probs[signs < 0].sum()
    shift = np.where(signs > 0, variation / up, -variation / down) * cells.probs
    assert np.abs(shift).sum() / 2 == pytest.approx(variation)
    assert alarms(cells.probs + shift) >= 0.98
    assert alarms(cells.probs + shift / 3) < 0.9


def test_the_whole_gate_is_one_report_that_json_takes() -> None:
    target, draft = pair()
    effort = Effort(4, 4, 160, (2,), 16)
    report = check(target, [draft], ITEMS, [T0, T1], Limits(20), effort)
    assert report.status == EXACT, report.verdict
    found = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert [item["name"] for item in found["checks"]] == [
        "target with draft at T=0", "target with draft at T=1",
    ]  # fmt: skip
    assert found["verdict"].startswith("exact: 2 of 2")
    few = replace(effort, num_draws=8, tries=1)
    report = check(target, [draft], ITEMS, [T1], Limits(20), few)
    assert (report.status, len(report.failures)) == (UNDERPOWERED, 1)
    report = check(target, [draft], ITEMS, [T1], Limits(20), replace(few, tries=3))
    assert (report.status, report.checks[0].num_draws) == (EXACT, 128)


def test_alarms_are_shared_by_all_tests_of_a_call() -> None:
    target, draft = pair()
    effort = Effort(4, 2, 64, (2,), 8, tries=1)
    samplings = [T0, T1, Sampling(0.7), Sampling(1.0, top_k=1)]
    report = check(target, [draft, draft], ITEMS, samplings, Limits(5), effort)
    assert report.as_dict()["effort"]["max_new_tokens"] == 5  # what was done, not what might be
    kinds = [hasattr(item, "false_alarm") for item in report.checks]
    assert kinds == [False, False, True, True, True, True, False, False]
    assert sum(getattr(item, "false_alarm", 0.0) for item in report.checks) == pytest.approx(1e-4)
