"""On a CUDA device: recorded passes give the free ones' numbers, and a round waits once.

Asked for with `-m gpu`; `scripts/gpu_check` does more, and says how fast it was.
"""

from __future__ import annotations

import pytest
import tiny
import torch

from specbench.decoding import SILENT, Phase, decode, uniforms
from specbench.models import load_model, load_tokenizer
from specbench.models.graphs import AsIs, CudaRecorder
from specbench.models.t5 import LeanT5
from specbench.models.t5_weights import fold
from specbench.records import Limits, Sampling

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda:0")
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PROMPTS = [[5, 6, 7, 8, 9, 1], [4, 3, 1], [10, 11, 12, 13, 10, 11, 12, 13, 22, 1]]
TEXT = "translate English to German: This package contains the documentation of the library."
TARGET, DRAFT = "pocket/target", "pocket/small-distilled"
NEW, GAMMA = 40, 4


class Counting(CudaRecorder):
    """Records as on any CUDA device, and counts."""

    num_recorded = 0

    def __init__(self):
        super().__init__(DEVICE)

    def __call__(self, function):
        Counting.num_recorded += 1
        return super().__call__(function)


def model(weights, new_recorder=None, vocab_size=tiny.PIECES):
    return LeanT5(
        "gpu",
        weights,
        vocab_size=vocab_size,
        eos_token=1,
        start_token=0,
        dtype="any",
        new_recorder=new_recorder,
    )


def free(loaded):
    """The same model without a recorder."""
    return model(loaded.weights, vocab_size=loaded.vocab_size)


def drawn(batch, length, seed=0):
    tokens = torch.randint(0, tiny.PIECES, (batch, length), generator=torch.manual_seed(seed))
    return tokens.to(DEVICE)


def along(one, prompts):
    """Logits of blocks of 1 to 5 tokens with rollbacks to unequal lengths between."""
    state, batch = one.start(prompts, 70), len(prompts)
    found = [one.extend(state, drawn(batch, 6))]
    for width in (1, 2, 3, 4, 5, 1, 5):
        one.rollback(state, [length - row for row, length in enumerate(state.lengths)])
        found.append(one.extend(state, drawn(batch, width, width)))
    return torch.cat(found, dim=1)


def error(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("layout", ["1.0", "1.1"])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=len)
def test_recorded_passes_give_the_numbers_of_free_ones(dtype, layout, prompts):
    network = tiny.t5(layout, d_kv=8).to(DEVICE, dtype)
    weights = fold(network, tiny.PIECES)
    got = along(model(weights, Counting), prompts)
    assert error(got, along(model(weights), prompts)) < LIMITS[dtype]
    assert error(got, along(model(weights, AsIs), prompts)) < LIMITS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pocket_target_gives_transformers_numbers(dtype):
    prompt = load_tokenizer(TARGET).encode(TEXT)
    ours = load_model(TARGET, device=DEVICE, dtype=dtype)
    theirs = load_model(TARGET, device=DEVICE, dtype=dtype, lean=False)
    limit = {torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]
    assert error(along(ours, [prompt]), along(theirs, [prompt])) < limit


@pytest.mark.parametrize("gamma", [0, GAMMA])
def test_greedy_tokens_of_the_pocket_pair_equal_generate(gamma):
    prompt = load_tokenizer(TARGET).encode(TEXT)
    pair = [load_model(name, device=DEVICE, dtype="float32") for name in (TARGET, DRAFT)]
    network = load_model(TARGET, device=DEVICE, dtype="float32", lean=False).network
    ids = torch.tensor([prompt], device=DEVICE)
    out = network.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
    )
    for target, draft in (pair, [free(one) for one in pair]):
        numbers = uniforms(0, "gpu", ["0"], NEW, gamma)
        got = decode(
            target, draft if gamma else None, gamma, [prompt], Sampling(0.0), Limits(NEW), numbers
        )
        assert got.tokens[0] == out[0, 1:].tolist()


class Strict:
    """Phases of a decoder during which every wait for the device but `tolist` is an error."""

    def __init__(self, monkeypatch):
        self.num_waits, self.num_rounds = 0, 0
        tolist = torch.Tensor.tolist

        def allowed(values):
            torch.cuda.set_sync_debug_mode("default")
            self.num_waits += 1
            result = tolist(values)
            torch.cuda.set_sync_debug_mode("error")
            return result

        monkeypatch.setattr(torch.Tensor, "tolist", allowed)

    def enter(self, phase):
        if phase in (Phase.DRAFT, Phase.VERIFY):
            torch.cuda.set_sync_debug_mode("error")

    def end_round(self):
        self.num_rounds += 1


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [0, GAMMA])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_round_waits_for_the_device_once(monkeypatch, heat, gamma, recorded):
    networks = [tiny.t5(seed=seed).to(DEVICE) for seed in (0, 1)]
    target, draft = (
        model(fold(network, tiny.PIECES), Counting if recorded else None) for network in networks
    )
    numbers = uniforms(0, "waits", ["0", "1", "2"], 20, gamma)
    limits, sampling = Limits(20, min_new_tokens=4), Sampling(heat, top_k=9, top_p=0.9)

    def run(phases):
        other = draft if gamma else None
        return decode(target, other, gamma, PROMPTS, sampling, limits, numbers, phases)

    run(SILENT)  # records, and lets torch set aside its pinned memory
    strict = Strict(monkeypatch)
    try:
        got = run(strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert strict.num_waits == strict.num_rounds == len(got.rounds)


def test_the_check_of_waits_sees_one(monkeypatch):
    strict = Strict(monkeypatch)
    try:
        strict.enter(Phase.DRAFT)
        with pytest.raises(RuntimeError, match="synchronizing"):
            torch.tensor([1, 2], device=DEVICE)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_one_recording_serves_all_prompts_of_a_size():
    one = model(fold(tiny.t5().to(DEVICE), tiny.PIECES), Counting)
    Counting.num_recorded = 0
    one.prepare(1, 10, 24, range(1, 6))
    assert Counting.num_recorded == 5
    plain = free(one)
    for seed, prompt in enumerate(PROMPTS):
        states = one.start([prompt], 24), plain.start([prompt], 24)
        for width in (5, 1, 3):
            tokens = drawn(1, width, seed)
            got, wanted = one.extend(states[0], tokens), plain.extend(states[1], tokens)
            assert error(got, wanted) < LIMITS[torch.float32]
        del states
    assert Counting.num_recorded == 5


def test_states_alive_together_do_not_meet_and_logits_last():
    one = model(fold(tiny.t5().to(DEVICE), tiny.PIECES), Counting)
    plain = free(one)
    states = [[m.start([prompt], 24) for prompt in PROMPTS[:2]] for m in (one, plain)]
    got, wanted = (
        [m.extend(state, drawn(1, 2, step)) for step in range(4) for state in own]
        for m, own in zip((one, plain), states, strict=True)
    )
    assert error(torch.cat(got), torch.cat(wanted)) < LIMITS[torch.float32]
