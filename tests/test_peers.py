"""Transformers' own decoding as an arm: same tokens, same counting, a fixed draft length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tiny import save, t5

from specbench.decoding import decode, uniforms
from specbench.experiment.config import Config, UsageError
from specbench.experiment.lines import from_dict, to_dict
from specbench.experiment.plan import plan
from specbench.experiment.prepare import Prepared
from specbench.experiment.run import Sweep
from specbench.experiment.store import Store
from specbench.measure.collection import collect
from specbench.measure.decomposition import decompose_collected
from specbench.measure.harness import Bench
from specbench.measure.metrics import summarize_collected
from specbench.measure.peer_decoding import counted, decode_by_peer
from specbench.measure.peers import compare_peers
from specbench.measure.recommendation import recommend_collected, what_if
from specbench.measure.timing import Stopwatch
from specbench.models import load_model, peer, peer_settings
from specbench.models.peer import PeerError, PeerRound, Task
from specbench.prompts import EncodedPrompt
from specbench.records import (
    FAILED,
    OK,
    Arm,
    Cell,
    Generation,
    Limits,
    Sampling,
    TokenDifference,
)
from specbench.report.best import table2_rows
from specbench.report.peers import peer_rows
from specbench.report.predicted import table4_rows

EQUAL = {"num_layers": 2, "num_decoder_layers": 2}
GREEDY = Sampling(0.0)
# The first ends early at EOS, the others run to the limit.
PROMPTS = [[8, 9, 1], [20, 1], [11, 30, 12, 13, 14, 1], [50, 51, 1]]
LENGTH = 12


class Pair(NamedTuple):
    """Models by name, as we run them and as transformers does: t(arget), d(raft), u(nequal)."""

    own: dict
    peers: dict


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    folder = tmp_path_factory.mktemp("models")
    draft = t5("1.1", 1, **EQUAL)
    torch.manual_seed(5)
    for weight in draft.parameters():
        weight.add_(0.1 * weight.std() * torch.randn_like(weight))
    networks = {"t": t5("1.1", 1, **EQUAL), "d": draft, "u": t5("1.1", 3)}
    names = {name: save(network, folder / name) for name, network in networks.items()}
    return Pair(
        {name: load_model(path) for name, path in names.items()},
        {name: load_model(path, lean=False) for name, path in names.items()},
    )


def task(pair: Pair, draft: str | None, gamma: int, sampling=GREEDY, length=LENGTH, seed=0) -> Task:
    drafting = None if draft is None else pair.peers[draft]
    return Task(pair.peers["t"], drafting, gamma, sampling, Limits(length), seed)


def ours(pair: Pair, gamma: int, prompt: list[int], length=LENGTH):
    draft = pair.own["d"] if gamma else None
    uniform = uniforms(0, "", ["x"], length, gamma)
    return decode(pair.own["t"], draft, gamma, [prompt], GREEDY, Limits(length), uniform)


def counts(rounds) -> list:
    return [(r.num_accepted, r.num_committed) for r in rounds]


@pytest.mark.parametrize(
    ("gamma", "length"),
    [(0, 1), (0, LENGTH), (1, LENGTH), (3, 4), (3, LENGTH), (5, 1), (5, LENGTH)],
)
def test_greedy_ids_and_counts_are_ours(pair: Pair, gamma: int, length: int) -> None:
    ends = set()
    for prompt in PROMPTS:
        work = task(pair, "d" if gamma else None, gamma, length=length)
        decoded, times = decode_by_peer(work, [prompt], Stopwatch())
        expected = ours(pair, gamma, prompt, length)
        assert decoded.tokens == expected.tokens
        assert decoded.stop_reasons == expected.stop_reasons
        # Equal also in what was accepted: both drafts see the same prefix.
        assert counts(decoded.rounds) == counts(expected.rounds)
        assert len(times.rounds) == len(decoded.rounds)
        assert 0 < times.ttft_s <= times.total_s
        ends.update(decoded.stop_reasons)
    assert ends == ({"length"} if length == 1 else {"eos", "length"})


def test_a_batch_of_plain_generate_is_counted_row_by_row(pair: Pair) -> None:
    decoded, _ = decode_by_peer(task(pair, None, 0), PROMPTS, Stopwatch())
    assert decoded.tokens == [ours(pair, 0, prompt).tokens[0] for prompt in PROMPTS]
    assert [sum(row) for row in zip(*(r.num_committed for r in decoded.rounds), strict=True)] == [
        len(row) for row in decoded.tokens
    ]


def test_every_round_drafts_gamma_but_at_eos_and_limit(pair: Pair) -> None:
    short = 0
    for prompt in PROMPTS:
        with peer.ready(task(pair, "d", 5), Told()) as generate:
            rounds = generate([prompt])
        done = 0
        for item in rounds:
            drafts = item.drafts[0]
            if len(drafts) < min(5, LENGTH - done - 1):
                assert drafts[-1] == 1
                short += 1
            done += len(item.kept[0])
    assert short  # or it has not been seen that a draft may say EOS


class Told:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin(self, phase: str) -> None:
        self.heard.append(phase)

    def end_round(self) -> None:
        self.heard.append("|")


@pytest.mark.parametrize(
    "change",
    [
        {"num_assistant_tokens_schedule": "heuristic"},
        {"assistant_confidence_threshold": 0.9},
        {"num_assistant_tokens": 2},
    ],
)
def test_a_draft_length_that_moves_is_refused(pair: Pair, monkeypatch, change) -> None:
    def moving(work: Task):
        settings = peer_settings.draft_settings(work)
        settings.update(**change)
        return settings

    monkeypatch.setattr(peer, "draft_settings", moving)
    with pytest.raises(PeerError, match="gamma not fixed: round"):
        decode_by_peer(task(pair, "d", 3), [PROMPTS[2]], Stopwatch())


@pytest.mark.parametrize("sampling", [Sampling(0.5), Sampling(0.7, 5, 0.9), GREEDY])
def test_a_draft_that_is_the_target_is_always_accepted(pair: Pair, sampling: Sampling) -> None:
    for seed, prompt in enumerate(PROMPTS[1:]):
        decoded, _ = decode_by_peer(task(pair, "t", 3, sampling, seed=seed), [prompt], Stopwatch())
        assert all(r.num_accepted == r.num_tested for r in decoded.rounds)


def test_nothing_is_left_behind_for_the_next_prompt(pair: Pair) -> None:
    def measured(order) -> dict:
        found = {}
        for index in order:
            work = task(pair, "d", 4, Sampling(1.0), length=8, seed=index)
            decoded, _ = decode_by_peer(work, [PROMPTS[index]], Stopwatch())
            found[index] = decoded.tokens, decoded.rounds
        return found

    before = torch.random.get_rng_state()
    settings = [model.network.generation_config for model in pair.peers.values()]
    forwards = measured(range(len(PROMPTS)))
    decode_by_peer(task(pair, "d", 1), [PROMPTS[0]], Stopwatch())
    assert measured(reversed(range(len(PROMPTS)))) == forwards
    assert torch.equal(torch.random.get_rng_state(), before)
    for model, own in zip(pair.peers.values(), settings, strict=True):
        assert model.network.generation_config is own
        assert not model.network._forward_pre_hooks
        assert not model.network.get_encoder()._forward_hooks


def test_phases_are_heard_and_each_encoder_runs_once(pair: Pair) -> None:
    told = Told()
    with peer.ready(task(pair, "d", 2, length=4), told) as generate:
        rounds = generate([PROMPTS[3]])
    heard = [phase for phase in told.heard if phase != "rest"]
    assert heard[:6] == ["target_prefill", "draft_prefill", "draft", "draft", "verify", "|"]
    assert heard.count("target_prefill") == heard.count("draft_prefill") == 1
    assert heard.count("verify") == heard.count("|") == len(rounds)
    assert heard.count("draft") == sum(len(item.drafts[0]) for item in rounds)


def test_rounds_are_counted_by_our_rule() -> None:
    rounds = [
        PeerRound([[7, 8, 9], []], [[7, 8, 4], [5]]),  # one rejected; a row without drafts
        PeerRound([[6, 1], [2, 3]], [[6, 1], [2, 3, 9]]),  # its own EOS, accepted; all accepted
        PeerRound([[], [4]], [[], [1]]),  # finished; EOS instead of the draft
    ]
    decoded = counted(rounds, eos_token=1)
    assert decoded.tokens == [[7, 8, 4, 6, 1], [5, 2, 3, 9, 1]]
    assert decoded.stop_reasons == ["eos", "eos"]
    assert [r.num_drafted for r in decoded.rounds] == [(3, 0), (2, 2), (0, 1)]
    assert [r.num_accepted for r in decoded.rounds] == [(2, 0), (2, 2), (0, 0)]
    assert [r.num_tested for r in decoded.rounds] == [(3, 0), (2, 2), (0, 1)]
    assert [r.num_committed for r in decoded.rounds] == [(3, 1), (2, 3), (0, 1)]


def swept(pair: Pair, folder: Path, prompts=PROMPTS, **options):
    """A whole sweep with transformers beside ours: the store's run and the prepared sweep."""
    given = {"target": "t", "draft": ("d",), "task": ("x",), "gamma": (3,), "turns": 1}
    given |= {"max_new_tokens": LENGTH, "arm": ("transformers",)}
    config = Config(**{**given, **options}).resolved()
    items = [EncodedPrompt(f"p{i}", tuple(ids), False) for i, ids in enumerate(prompts)]
    info = {"host": {}, "config": config.as_dict(), "prompts": {}, "models": {}}
    ready = Prepared(
        config=config,
        groups=plan(config, "float32", "cpu"),
        bench=Bench(pair.own, Stopwatch(), lambda: None, peers=pair.peers),
        prompts={"x": items},
        info=info,
        notes=[],
    )
    store = Store(folder)
    earlier = store.open(info, [cell for cells in ready.groups for cell in cells])
    num_failed = Sweep(ready, store, lambda done, total, text: None, earlier).run()
    return store.read(), num_failed


@pytest.fixture(scope="module")
def run(pair: Pair, tmp_path_factory):
    found, num_failed = swept(pair, tmp_path_factory.mktemp("run"))
    assert num_failed == 0
    return found


def test_a_sweep_sets_transformers_beside_ours(run) -> None:
    collected = collect(run.cells, run.records, seed=0)
    summaries = summarize_collected(collected)
    found = compare_peers(collected, summaries)
    assert [(one.peer.cell.arm.draft, one.peer.cell.arm.gamma) for one in found] == [
        (None, 0), ("d", 3), (None, 0), ("d", 3),
    ]  # fmt: skip
    assert [one.num_same for one in found] == [len(PROMPTS), len(PROMPTS), None, None]
    for row in peer_rows(found):
        assert row["speed_ratio_low"] <= row["speed_ratio"] <= row["speed_ratio_high"]
        assert row["tokens_per_s"] > 0 < row["own_tokens_per_s"]
        assert row["error"] is None
        assert "gamma not fixed" not in row["flags"]
        assert row["gamma"] == 0 or row["drafted_histogram"].startswith("3:")
    assert not any(arm.is_peer for arm in chosen(collected, summaries))


def chosen(collected, summaries) -> list[Arm]:
    """Every arm that a recommendation, a table of ours or a decomposition is about."""
    advice = recommend_collected(collected, summaries)
    arms = [one.cell.arm for one in decompose_collected(collected)]
    arms += [one.best.cell.arm for one in advice]
    arms += [one.runner_up.cell.arm for one in advice if one.runner_up]
    assert len(advice) == len(what_if(summaries)) == len(table2_rows(summaries)) == 2
    assert len(table4_rows(summaries, [])) == 2
    return arms


def test_a_peer_is_never_chosen_however_fast(run) -> None:
    fast = [
        replace(one, total_s=one.total_s / 1000, target_prefill_s=0.0, draft_prefill_s=0.0)
        if isinstance(one, Generation) and "engine=transformers" in one.cell
        else one
        for one in run.records
    ]
    collected = collect(run.cells, fast, seed=0)
    summaries = summarize_collected(collected)
    assert not any(arm.is_peer for arm in chosen(collected, summaries))
    assert all(one.speed_ratio.value < 0.1 for one in compare_peers(collected, summaries))


def test_peers_without_a_clock_in_their_rounds_are_summarized(run) -> None:
    records = [
        replace(
            one,
            rounds=tuple(
                replace(item, draft_s=None, verify_s=None, rest_s=None) for item in one.rounds
            ),
        )
        if isinstance(one, Generation) and "engine=transformers" in one.cell
        else one
        for one in run.records
    ]
    collected = collect(run.cells, records, seed=0)
    found = compare_peers(collected, summarize_collected(collected))
    assert all(one.speed_ratio is not None for one in found)


def failures(run) -> dict[str, str]:
    records = [one for one in run.records if isinstance(one, Generation)]
    return {one.cell: one.error for one in records if one.status == FAILED}


def test_unequal_depths_say_why_and_the_rest_goes_on(pair: Pair, tmp_path: Path) -> None:
    some = {"prompts": PROMPTS[:2], "temperature": (0.0,), "max_new_tokens": 6}
    run, num_failed = swept(pair, tmp_path, draft=("u", "d"), **some)
    assert num_failed == 1
    ((cell, error),) = failures(run).items()
    assert "draft=u" in cell
    assert "engine=transformers" in cell
    assert "IndexError" in error
    assert "the 2 of the encoder" in error
    assert "\n" not in error
    collected = collect(run.cells, run.records, seed=0)
    rows = peer_rows(compare_peers(collected, summarize_collected(collected)))
    assert [(row["draft"], row["error"] is None) for row in rows] == [
        (None, True), ("u", False), ("d", True),
    ]  # fmt: skip
    assert {g.status for g in run.records if isinstance(g, Generation) and g.cell != cell} == {OK}


def test_assisted_generation_of_a_batch_says_why(pair: Pair, tmp_path: Path) -> None:
    run, num_failed = swept(pair, tmp_path, batch=(4,), temperature=(0.0,), max_new_tokens=4)
    assert num_failed == 1
    ((cell, error),) = failures(run).items()
    assert "batch=4" in cell
    assert "only supported for batch_size = 1" in error


def test_a_difference_is_kept_with_its_gap(pair: Pair, tmp_path: Path, monkeypatch) -> None:
    def changed(self, cell, items, limits):
        decoded, times = original(self, cell, items, limits)
        if not cell.arm.draft:
            decoded.tokens[0][1] = 3
        return decoded, times

    original = Bench._by_peer
    monkeypatch.setattr(Bench, "_by_peer", changed)
    some = {"prompts": PROMPTS[2:3], "temperature": (0.0,), "max_new_tokens": 6}
    run, _ = swept(pair, tmp_path, **some)
    (found,) = (one for one in run.records if isinstance(one, TokenDifference))
    assert (found.prompt_id, found.position, found.peer_token) == ("p0", 1, 3)
    assert found.verdict == "wrong"
    assert found.gap > 0
    assert from_dict(to_dict(found)) == found
    collected = collect(run.cells, run.records, seed=0)
    row, other = peer_rows(compare_peers(collected, summarize_collected(collected)))
    assert (row["num_same_ids"], row["num_compared"]) == (0, 1)
    assert row["differences"].startswith(f"wrong, gap {found.gap:.2g}, at token 1 of p0")
    assert (other["num_same_ids"], other["differences"]) == (1, None)
    lines = (tmp_path / "raw.jsonl").read_bytes()
    swept(pair, tmp_path, **some)
    assert (tmp_path / "raw.jsonl").read_bytes() == lines


def test_our_own_cells_keep_their_keys(pair: Pair) -> None:
    (cells, *_) = plan(Config(target="t", draft=("d",), task=("x",), gamma=(3,)), "float32", "cpu")
    assert all("engine" not in cell.key for cell in cells)
    (cells, *_) = plan(
        Config(target="t", draft=("d",), task=("x",), gamma=(3,), arm=("transformers",)),
        "float32",
        "cpu",
    )
    assert [cell.arm.label for cell in cells] == [
        "baseline", "null", "d gamma=3", "transformers baseline", "transformers d gamma=3",
    ]  # fmt: skip
    assert len({cell.key for cell in cells}) == 5
    assert [cell.arm.is_baseline for cell in cells] == [True, False, False, False, False]
    peer_cell = Cell(cells[0].group, Arm(engine="transformers"))
    assert peer_cell.key == f"{cells[0].key} engine=transformers"


def test_another_peer_is_refused() -> None:
    with pytest.raises(UsageError, match="--arm 'vllm': allowed are transformers"):
        Config(target="t", draft=("d",), task=("x",), arm=("vllm",)).resolved()
