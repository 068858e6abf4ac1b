"""The lean T5 gives transformers' numbers, whatever was cached, rolled back or batched."""

from __future__ import annotations

import dataclasses
import math

import pytest
import tiny
import torch

from specbench.models.t5 import LeanT5
from specbench.models.t5_attention import DecoderBias, bucket
from specbench.models.t5_weights import fold
from specbench.models.tuning import tune

PROMPTS = [[5, 6, 7, 8, 9, 1], [4, 3, 1], [10, 11, 12, 13, 10, 11, 12, 13, 22, 1]]
CAPACITY = 24
FP32 = 1e-5


def lean(model, vocab_size=tiny.PIECES):
    weights = fold(model, vocab_size)
    tune(weights.decoder_linears())
    return LeanT5(
        "tiny",
        weights,
        vocab_size=vocab_size,
        eos_token=1,
        start_token=0,
        dtype=str(model.dtype).removeprefix("torch."),
    )


def fresh(model, prompts, tokens):
    """Logits (B, K, V) of transformers' own forward over whole sequences, nothing cached."""
    longest = max(map(len, prompts))
    ids = torch.tensor([p + [0] * (longest - len(p)) for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (longest - len(p)) for p in prompts])
    out = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens)
    return out.logits[..., : tiny.PIECES].float()


def error(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


def drawn(batch, length, seed=0):
    tokens = torch.randint(0, tiny.PIECES, (batch, length), generator=torch.manual_seed(seed))
    tokens[:, 0] = 0
    return tokens


def at(rows, lengths, width):
    """(B, width, ...) of each row from its own place on."""
    starts = zip(rows, lengths, strict=True)
    return torch.stack([row[length : length + width] for row, length in starts])


LAYOUTS = {
    "1.0": {},
    "1.1": {},
    "relu, wide d_kv": {"layout": "1.0", "d_kv": 16, "num_heads": 3},
    "gated, few buckets": {
        "layout": "1.1",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
    },
    "norm floor that matters": {"layout": "1.0", "layer_norm_epsilon": 0.3},
    "float16 numbers": {"layout": "1.0"},
    "float16 numbers, gated": {"layout": "1.1"},
}


@pytest.fixture(params=LAYOUTS, scope="module")
def model(request):
    network = tiny.t5(**({"layout": request.param} | LAYOUTS[request.param]))
    if "float16" in request.param:
        for parameter in network.parameters():
            parameter.copy_(parameter.half())
    return network


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS, [PROMPTS[0]] * 2], ids=len)
def test_steps_and_blocks_equal_a_fresh_forward(model, prompts):
    tokens = drawn(len(prompts), 17)
    decoder = lean(model)
    state = decoder.start(prompts, CAPACITY)
    widths = [1, 1, 5, 1, 8, 1]
    got = torch.cat([decoder.extend(state, part) for part in tokens.split(widths, dim=1)], dim=1)
    assert got.dtype == torch.float32
    assert error(got, fresh(model, prompts, tokens)) < FP32


@pytest.mark.parametrize("kept", range(6))
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=len)
def test_after_any_rollback_the_cache_equals_a_fresh_forward(model, prompts, kept):
    gamma, prefix = 5, 4
    tokens, others = drawn(len(prompts), 16), drawn(len(prompts), 16, seed=1)
    decoder = lean(model)
    state = decoder.start(prompts, CAPACITY)
    decoder.extend(state, tokens[:, :prefix])
    decoder.extend(state, others[:, prefix : prefix + gamma])
    # rows keep kept, kept - 1 and kept - 2 of the block: ragged from here on
    lengths = [prefix + max(0, kept - row) for row in range(len(prompts))]
    decoder.rollback(state, lengths)
    mixed = tokens.clone()
    for row, length in enumerate(lengths):
        mixed[row, prefix:length] = others[row, prefix:length]
    got = decoder.extend(state, at(mixed, lengths, 1))
    assert error(got, at(fresh(model, prompts, mixed), lengths, 1)) < FP32
    lengths = state.lengths
    got = decoder.extend(state, at(mixed, lengths, 5))
    assert error(got, at(fresh(model, prompts, mixed), lengths, 5)) < FP32


@pytest.mark.parametrize("layout", ["1.0", "1.1"])
def test_greedy_tokens_equal_generate(layout):
    # transformers' generate fails on unequal depths, so the depths are equal here
    for seed in range(3):
        model = tiny.t5(layout, seed, num_layers=2, num_decoder_layers=2, vocab_size=tiny.PIECES)
        decoder = lean(model)
        state = decoder.start(PROMPTS[:1], CAPACITY)
        token, got = state.first_tokens[:, None], []
        while len(got) < 20 and (not got or got[-1] != 1):
            token = decoder.extend(state, token)[:, -1].argmax(-1, keepdim=True)
            got.append(int(token))
        wanted = model.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=20, do_sample=False)
        assert got == wanted[0, 1:].tolist()


def test_batch_rows_equal_batch_one(model):
    decoder = lean(model)
    tokens = drawn(3, 9)
    together = decoder.start(PROMPTS, CAPACITY)
    got = decoder.extend(together, tokens)
    for row, prompt in enumerate(PROMPTS):
        alone = decoder.start([prompt], CAPACITY)
        wanted = decoder.extend(alone, tokens[row : row + 1])[0]
        assert error(got[row], wanted) < FP32


def test_bfloat16_stays_near_float32(model):
    half = type(model)(model.config).eval().requires_grad_(False)
    half.load_state_dict(model.state_dict())
    tokens = drawn(3, 8)
    decoder = lean(half.to(torch.bfloat16))
    state = decoder.start(PROMPTS, CAPACITY)
    got = torch.cat([decoder.extend(state, part) for part in tokens.split([1, 7], dim=1)], dim=1)
    assert got.dtype == torch.float32
    assert decoder.dtype == "bfloat16"
    wanted = fresh(model, PROMPTS, tokens)
    theirs = fresh(half, PROMPTS, tokens)

    def spread(logits):  # root mean square, relative
        return float((logits - wanted).norm() / wanted.norm())

    assert spread(got) < max(2e-2, 1.2 * spread(theirs))


def test_padding_pieces_never_leave_the_model(model):
    decoder = lean(model)
    state = decoder.start(PROMPTS[:1], CAPACITY)
    assert decoder.extend(state, torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, tiny.PIECES)


def test_rollback_moves_lengths_and_leaves_the_encoder_alone(model):
    decoder = lean(model)
    prompt = [*range(4, 44)]
    state = decoder.start([prompt], CAPACITY)
    decoder.extend(state, drawn(1, 6))
    kept = [tensor.clone() for tensor in state.memory.cross_keys]
    decoder.rollback(state, [4])
    assert state.lengths == [4]
    assert {tensor.shape[-1] for tensor in state.memory.cross_keys} == {40}
    assert {tensor.shape[-2] for tensor in state.memory.cross_values} == {40}
    assert all(map(torch.equal, kept, state.memory.cross_keys))


def test_a_mutant_that_cuts_the_cross_cache_is_seen(model):
    decoder = lean(model)
    tokens = drawn(1, 7)
    state = decoder.start(PROMPTS[:1], CAPACITY)
    decoder.extend(state, tokens[:, :6])
    decoder.rollback(state, [4])
    cut = dataclasses.replace(
        state.memory,
        cross_keys=tuple(keys[..., :4] for keys in state.memory.cross_keys),
        cross_values=tuple(values[:, :4] for values in state.memory.cross_values),
    )
    state.memory = cut
    got = decoder.extend(state, tokens[:, 4:7])
    assert error(got, fresh(model, PROMPTS[:1], tokens)[:, 4:7]) > 100 * FP32


@pytest.mark.parametrize("kept", [[3], [5]])
def test_a_mutant_that_rolls_back_to_a_wrong_length_is_seen(model, kept):
    decoder = lean(model)
    tokens = drawn(1, 7)
    state = decoder.start(PROMPTS[:1], CAPACITY)
    decoder.extend(state, tokens[:, :6])
    decoder.rollback(state, kept)
    got = decoder.extend(state, tokens[:, 4:7])
    assert error(got, fresh(model, PROMPTS[:1], tokens)[:, 4:7]) > 100 * FP32


def test_the_encoder_runs_once_for_each_start(model):
    decoder = lean(model)
    state = decoder.start(PROMPTS, CAPACITY)
    for _ in range(3):
        decoder.extend(state, drawn(3, 4))
        decoder.rollback(state, [2, 1, 3])
    assert decoder.num_encoder_calls == 1


def test_two_states_share_no_storage(model):
    decoder, draft = lean(model), lean(model)
    states = [decoder.start(PROMPTS, CAPACITY), draft.start(PROMPTS, CAPACITY)]
    states.append(decoder.start(PROMPTS, CAPACITY))
    places = [
        {
            tensor.untyped_storage().data_ptr()
            for tensor in (s.memory.cache, *s.memory.cross_keys, *s.memory.cross_values)
        }
        for s in states
    ]
    assert not places[0] & places[1]
    assert not places[0] & places[2]


def test_a_model_does_not_follow_later_changes_of_the_network():
    network = tiny.t5()
    decoder = lean(network)
    tokens = drawn(1, 3)
    wanted = decoder.extend(decoder.start(PROMPTS[:1], CAPACITY), tokens).clone()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(decoder.extend(decoder.start(PROMPTS[:1], CAPACITY), tokens), wanted)


def test_what_does_not_fit_is_refused():
    decoder = lean(tiny.t5())
    state = decoder.start(PROMPTS[:2], 4)
    decoder.extend(state, drawn(2, 3))
    with pytest.raises(ValueError, match="outgrows the capacity of 4"):
        decoder.extend(state, drawn(2, 2))
    assert state.lengths == [3, 3]
    with pytest.raises(ValueError, match="rollback of row 1 to 4: allowed are 0 to 3"):
        decoder.rollback(state, [0, 4])
    with pytest.raises(ValueError, match="rollback of row 0 to -1"):
        decoder.rollback(state, [-1, 0])
    with pytest.raises(ValueError, match="1 lengths for 2 rows"):
        decoder.rollback(state, [0])
    with pytest.raises(ValueError, match="expected"):
        decoder.extend(state, drawn(3, 1))
    with pytest.raises(ValueError, match="capacity 0"):
        decoder.start(PROMPTS, 0)
    with pytest.raises(ValueError, match="none may be empty"):
        decoder.start([[1], []], 4)


def test_blocks_longer_than_the_first_strip(model):
    tokens = drawn(1, 21)
    decoder = lean(model)
    got = decoder.extend(decoder.start(PROMPTS[:1], CAPACITY), tokens)
    assert error(got, fresh(model, PROMPTS[:1], tokens)) < FP32
    longer = drawn(1, 45)
    got = decoder.extend(decoder.start(PROMPTS[:1], 45), longer)
    assert error(got, fresh(model, PROMPTS[:1], longer)) < FP32


def test_buckets_by_hand():
    # 8 buckets up to 16: 0..3 are single; then 4 * 4**((b-4)/4): 4, 5.7, 8, 11.3
    distances = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16, 1000])
    assert bucket(distances, 8, 16).tolist() == [0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 7]


def test_the_bias_strip_is_causal():
    table = torch.arange(8.0)[:, None]
    strip = DecoderBias(table, capacity=10, block=3, max_distance=16)
    got = strip.at(length=2, num_queries=3, num_keys=5)[0]
    hidden = -math.inf
    assert got.tolist() == [
        [2, 1, 0, hidden, hidden],
        [3, 2, 1, 0, hidden],
        [4, 3, 2, 1, 0],
    ]


def test_equal_prompts_are_rows_of_their_own(model):
    model = lean(model)
    prompts = [[5, 6, 7, 1], [8, 9, 1], [5, 6, 7, 1]]
    state = model.start(prompts, capacity=4)
    logits = model.extend(state, state.first_tokens[:, None])
    for row, prompt in enumerate(prompts):
        alone = model.start([prompt], capacity=4)
        expected = model.extend(alone, alone.first_tokens[:, None])
        # As everywhere here: another layout rounds otherwise, and a logit near zero shows it most.
        assert error(logits[row : row + 1], expected) < FP32
