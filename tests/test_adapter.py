"""Any transformers model through its own forward: cached equals fresh, or is refused."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specbench.decoding import decode, uniforms
from specbench.models import ModelError, TransformersModel, cache
from specbench.records import Limits, Sampling

VOCAB = 50
PROMPTS = [[5, 6, 7, 8, 9, 1], [4, 3, 1], [10, 11, 12, 13, 14, 15, 16, 17, 18]]
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "max_position_embeddings": 64,
}


def gpt2():
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, eos_token_id=1, bos_token_id=2
    )
    return GPT2LMHeadModel(config)


NETWORKS = {
    "gpt2": gpt2,
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=4)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
    "neo": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            window_size=4,
            attention_types=[[["global", "local"], 1]],
            eos_token_id=1,
            bos_token_id=2,
        )
    ),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**SEQ2SEQ)),
    "marian": lambda: MarianMTModel(MarianConfig(**SEQ2SEQ)),
}


def network_of(make):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = make().eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(std=0.3)
    return network


@pytest.fixture(params=NETWORKS, scope="module")
def network(request):
    return network_of(NETWORKS[request.param])


def adapted(network, vocab_size=VOCAB):
    start = 2 if network.config.is_encoder_decoder else None
    return TransformersModel(
        "tiny", network, vocab_size=vocab_size, eos_token=1, start_token=start, dtype="float32"
    )


def fresh(network, prompt, tokens):
    """Logits (K, V) after each of `tokens`, from one forward without any cache."""
    if network.config.is_encoder_decoder:
        return network(
            input_ids=torch.tensor([prompt]), decoder_input_ids=tokens[None], use_cache=False
        ).logits[0]
    whole = torch.cat([torch.tensor(prompt[:-1], dtype=torch.long), tokens])
    return network(input_ids=whole[None], use_cache=False).logits[0, len(prompt) - 1 :]


def drawn(model, prompts, length, seed=0):
    tokens = torch.randint(2, VOCAB, (len(prompts), length), generator=torch.manual_seed(seed))
    tokens[:, 0] = model.start(prompts, 1).first_tokens
    return tokens


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_steps_and_blocks_equal_a_fresh_forward(network):
    model = adapted(network)
    tokens = drawn(model, PROMPTS, 9)
    state = model.start(PROMPTS, 12)
    got = torch.cat([model.extend(state, part) for part in tokens.split([1, 1, 5, 2], dim=1)], 1)
    for row, prompt in enumerate(PROMPTS):
        close(got[row], fresh(network, prompt, tokens[row]))


@pytest.mark.parametrize("kept", range(5))
def test_after_any_rollback_the_cache_equals_a_fresh_forward(network, kept):
    model = adapted(network)
    tokens, others = drawn(model, PROMPTS, 9), drawn(model, PROMPTS, 9, seed=1)
    state = model.start(PROMPTS, 12)
    model.extend(state, tokens[:, :3])
    model.extend(state, others[:, 3:7])
    lengths = [3 + max(0, kept - row) for row in range(3)]
    model.rollback(state, lengths)
    assert state.lengths == lengths
    tail = torch.stack([tokens[row, n : n + 2] for row, n in enumerate(lengths)])
    got = model.extend(state, tail)
    for row, n in enumerate(lengths):
        whole = torch.cat([tokens[row, :3], others[row, 3:n], tail[row]])
        close(got[row], fresh(network, PROMPTS[row], whole)[n:])


def test_greedy_tokens_equal_generate(network):
    model = adapted(network)
    state = model.start(PROMPTS[2:], 20)
    token, got = state.first_tokens[:, None], []
    while len(got) < 20 and (not got or got[-1] != 1):
        token = model.extend(state, token)[:, -1].argmax(-1, keepdim=True)
        got.append(int(token))
    wanted = network.generate(
        torch.tensor(PROMPTS[2:]),
        attention_mask=torch.ones(1, len(PROMPTS[2]), dtype=torch.long),
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=0,
    )
    begin = 1 if network.config.is_encoder_decoder else len(PROMPTS[2])
    assert got == wanted[0, begin:].tolist()


def test_the_encoder_runs_once_for_each_prompt(network):
    model = adapted(network)
    state = model.start(PROMPTS, 12)
    for _ in range(3):
        model.extend(state, drawn(model, PROMPTS, 2)[:, :1])
        model.rollback(state, [0, 0, 0])
    encodes = 1 if network.config.is_encoder_decoder else 0
    # `drawn` starts three times too, to see the first tokens
    assert model.num_encoder_calls == 4 * len(PROMPTS) * encodes


@pytest.mark.parametrize("name", ["bart", "marian"])
def test_rollback_leaves_the_encoder_part(name):
    model = adapted(network_of(NETWORKS[name]))
    state = model.start([[*range(4, 44)]], 12)
    model.extend(state, torch.full((1, 6), 7))
    model.rollback(state, [4])
    kept = state.memory.groups[0].cache
    assert kept.get_seq_length() == 4
    assert kept.cross_attention_cache.get_seq_length() == 40


def test_padding_pieces_never_leave_the_model(network):
    model = adapted(network, vocab_size=VOCAB - 3)
    state = model.start(PROMPTS, 4)
    assert model.extend(state, torch.full((3, 2), 5)).shape == (3, 2, VOCAB - 3)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2", "qwen3"])
def test_a_causal_batch_is_one_call_and_holes_go_when_no_row_needs_their_column(name):
    network = network_of(NETWORKS[name])
    model = adapted(network)
    state = model.start(PROMPTS, 12)
    calls = []
    network.register_forward_hook(lambda *_: calls.append(1))
    model.extend(state, drawn(model, PROMPTS, 9)[:, :4])
    assert len(calls) == 1 + 1  # `drawn` reads the prompts too, in one call
    group = state.memory.groups[0]
    padding = max(len(prompt) for prompt in PROMPTS) - 1
    assert group.cache.get_seq_length() == padding + 4
    model.rollback(state, [1, 3, 2])
    assert group.cache.get_seq_length() == padding + 3
    model.rollback(state, [0, 0, 0])
    assert group.cache.get_seq_length() == padding


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_longest_row_keep_rows_apart(rope_type):
    network = network_of(NETWORKS["llama"])
    assert cache.ignores_columns(network)
    network.config.rope_parameters = {"rope_type": rope_type}
    assert not cache.ignores_columns(network)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_a_batch_decode_as_they_do_alone(network, temperature):
    target, draft, gamma = adapted(network), adapted(network_of(gpt2)), 3
    sampling, limits = Sampling(temperature), Limits(max_new_tokens=14)
    names = [str(row) for row in range(len(PROMPTS))]

    def tokens(rows):
        numbers = uniforms(0, "cell", [names[row] for row in rows], 14, gamma)
        prompts = [PROMPTS[row] for row in rows]
        return decode(target, draft, gamma, prompts, sampling, limits, numbers).tokens

    assert tokens([0, 1, 2]) == [tokens([row])[0] for row in range(3)]


def test_a_cache_that_keeps_too_much_is_an_error():
    class Stubborn:
        def get_seq_length(self):
            return 6

        def crop(self, count):
            assert count == -2

    with pytest.raises(ModelError, match="kept 6 tokens when cut to 4"):
        cache.crop("tiny", Stubborn(), 4)


def test_sliding_windows_and_recurrent_states_are_refused():
    sliding = network_of(lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)))
    with pytest.raises(ModelError, match="DynamicSlidingWindowLayer, which cannot be rolled back"):
        adapted(sliding)
    full = network_of(lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)))
    adapted(full)
    recurrent = MambaConfig(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match="cannot be rolled back"):
        adapted(network_of(lambda: MambaForCausalLM(recurrent)))


def test_a_prompt_of_one_token(network):
    model = adapted(network)
    state = model.start([[7]], 4)
    got = model.extend(state, state.first_tokens[:, None])
    close(got[0], fresh(network, [7], state.first_tokens))


def test_capacity_counts_what_extend_took():
    model = adapted(network_of(gpt2))
    state = model.start(PROMPTS[:1], 3)
    model.extend(state, torch.full((1, 3), 5))
    with pytest.raises(ValueError, match="outgrows the capacity of 3"):
        model.extend(state, torch.full((1, 1), 5))
    with pytest.raises(ValueError, match="allowed are 0 to 3"):
        model.rollback(state, [4])
