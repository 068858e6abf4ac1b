"""Another engine beside ours: speeds, whether the ids agree, and what was really drafted."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.measure.peers import PeerComparison
from specbench.measure.summary import CellSummary
from specbench.records import OWN_ENGINE, TokenDifference
from specbench.report.layout import MISSING, TEMPERATURE, Column, Layout, interval, value, word
from specbench.report.rows import Row, cell_of, estimate_of, flag_text


def peer_rows(comparisons: Sequence[PeerComparison]) -> list[Row]:
    """One row per arm of a peer; names beginning with own_ are of the same arm of ours.

    speed_ratio: peer seconds per committed token / ours, end to end. num_compared: outputs whose
    ids were compared, missing at T > 0. drafted_histogram: rounds by drafted tokens.
    """
    return [_row(found) for found in comparisons]


def _row(found: PeerComparison) -> Row:
    peer, own = found.peer, found.own
    return {
        **cell_of(peer.cell),
        "num_prompts": peer.num_prompts,
        "own_tokens_per_s": own.tokens_per_s if own else None,
        "tokens_per_s": peer.tokens_per_s,
        **estimate_of("speed_ratio", found.speed_ratio),
        **estimate_of("own_speedup", own.speedup if own else None),
        **estimate_of("speedup", peer.speedup),
        "num_same_ids": found.num_same,
        "num_compared": found.num_compared,
        "differences": "; ".join(_difference(one) for one in found.differences) or None,
        **estimate_of("own_block_efficiency", own.block_efficiency if own else None),
        **estimate_of("block_efficiency", peer.block_efficiency),
        "own_drafted_histogram": _drafted(own) if own else None,
        "drafted_histogram": _drafted(peer),
        "own_ttft_s": own.ttft_s if own else None,
        "ttft_s": peer.ttft_s,
        "flags": flag_text(peer),
        "error": peer.error,
    }


def _drafted(one: CellSummary) -> str | None:
    widths = sorted(one.drafted_histogram.items(), reverse=True)
    if not one.cell.arm.gamma or not widths:
        return None
    return " ".join(f"{width}:{count}" for width, count in widths)


def _difference(found: TokenDifference) -> str:
    gap = "one output had ended" if found.gap is None else f"gap {found.gap:.2g}"
    return f"{found.verdict}, {gap}, at token {found.position} of {found.prompt_id}"


def _ids(row: Row) -> str:
    if row["num_compared"] is None:
        return MISSING
    return f"{row['num_same_ids']} of {row['num_compared']}"


PEERS = Layout(
    "Beside another engine",
    (
        word("task"),
        word("engine"),
        TEMPERATURE,
        value("batch"),
        word("draft"),
        value("gamma", "γ"),
        value("own_tokens_per_s", f"tokens/s {OWN_ENGINE}", 1),
        value("tokens_per_s", "tokens/s peer", 1),
        interval("speed_ratio", f"{OWN_ENGINE} / peer"),
        Column("same ids", _ids, number=False),
        word("differences"),
        value("own_block_efficiency", "tokens/round"),
        value("block_efficiency", "tokens/round peer"),
        word("drafted_histogram", "drafted by peer"),
        word("flags"),
        word("error", "why not"),
    ),
    (
        (
            "Same weights, dtype, device, threads, prompts and limits, measured in turns; "
            "committed tokens per second, end to end, in brackets the paired 95 % interval over "
            "prompts. tokens/round: ours, and of the peer. "
            "same ids: at T = 0; above it equal laws give different texts."
        ),
        (
            "drafted by peer: rounds by drafted tokens (5:12 is 12 rounds of 5). A round drafts "
            "fewer than γ only near the limit, or where the draft said EOS; any other would fail."
        ),
    ),
)
