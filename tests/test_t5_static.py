"""The lean T5 on fixed buffers: the same numbers as without, and no state in another's way."""

from __future__ import annotations

import gc
import sys

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding import decode, uniforms
from specbench.experiment.config import Config
from specbench.experiment.plan import plan
from specbench.experiment.prepare import Prepared
from specbench.experiment.run import Sweep
from specbench.experiment.store import Store
from specbench.measure.harness import Bench
from specbench.measure.timing import Stopwatch
from specbench.models.graphs import AsIs, recorders_for
from specbench.models.t5 import LeanT5
from specbench.models.t5_static import shape_for
from specbench.models.t5_weights import fold
from specbench.prompts import EncodedPrompt
from specbench.records import Limits, Sampling

PROMPTS = [[5, 6, 7, 8, 9, 1], [4, 3, 1], [10, 11, 12, 13, 10, 11, 12, 13, 22, 1]]
CAPACITY = 24
FP32, BF16 = 1e-5, 2e-2
LAYOUTS = {
    "1.0": {},
    "1.1": {},
    "1.1, few buckets": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9},
    "1.0, float16 numbers": {},
}


class Tape:
    """A recorder that behaves as a graph does: recording runs the pass twice, a replay gives the
    same tensor each time, and what it held is gone."""

    num_recorded = 0

    def __call__(self, function):
        Tape.num_recorded += 1
        function()
        kept = function()

        def replay():
            kept.copy_(function())
            return kept

        return replay


def model(weights, new_recorder=None):
    return LeanT5(
        "tiny",
        weights,
        vocab_size=tiny.PIECES,
        eos_token=1,
        start_token=0,
        dtype="float32",
        new_recorder=new_recorder,
    )


@pytest.fixture(params=LAYOUTS, scope="module")
def weights(request):
    network = tiny.t5(request.param[:3], **LAYOUTS[request.param])
    if "float16" in request.param:
        for parameter in network.parameters():
            parameter.copy_(parameter.half())
    return fold(network, tiny.PIECES)


@pytest.fixture(params=[AsIs, Tape])
def pair(request, weights):
    """The same weights on fixed buffers and without."""
    return model(weights, request.param), model(weights)


def drawn(batch, length, seed=0):
    return torch.randint(0, tiny.PIECES, (batch, length), generator=torch.manual_seed(seed))


def error(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


class Both:
    """Two states that are asked the same; says how far apart the answers are."""

    def __init__(self, pair, prompts, capacity=CAPACITY):
        self.models = pair
        self.states = [one.start(prompts, capacity) for one in pair]

    def extend(self, tokens):
        got, wanted = (
            one.extend(state, tokens) for one, state in zip(self.models, self.states, strict=True)
        )
        assert got.dtype == wanted.dtype == torch.float32
        assert got.shape == wanted.shape
        return error(got, wanted)

    def rollback(self, lengths):
        for one, state in zip(self.models, self.states, strict=True):
            one.rollback(state, lengths)


@pytest.mark.parametrize("width", range(1, 6))
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS, [PROMPTS[0]] * 2], ids=len)
def test_blocks_and_rollbacks_equal_the_pass_without_buffers(pair, prompts, width):
    both, batch = Both(pair, prompts), len(prompts)
    assert both.extend(drawn(batch, 6)) < FP32
    both.rollback([6 - row for row in range(batch)])  # ragged from here on
    for seed in range(3):
        assert both.extend(drawn(batch, width, seed + 1)) < FP32
    both.rollback([2 * row for row in range(batch)])
    assert both.extend(drawn(batch, width, 9)) < FP32
    both.rollback([0] * batch)
    assert both.extend(drawn(batch, width, 10)) < FP32


@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 128])
@pytest.mark.parametrize("length", [1, 64, 65])
def test_edges_of_the_sizes(capacity, length):
    weights = fold(tiny.t5(), tiny.PIECES)
    prompts = [[5] * length, [7]]
    both = Both((model(weights, AsIs), model(weights)), prompts, capacity)
    if capacity > 1:
        assert both.extend(drawn(2, capacity - 1)) < FP32
    assert both.extend(drawn(2, 1)) < FP32
    with pytest.raises(ValueError, match=f"outgrows the capacity of {capacity}"):
        both.extend(drawn(2, 1))


def test_sizes_by_hand():
    assert shape_for(3, 1, 1) == (3, 64, 64)
    assert shape_for(3, 64, 64) == (3, 64, 64)
    assert shape_for(3, 65, 65) == (3, 128, 128)
    assert shape_for(3, 129, 129) == (3, 192, 256)


@pytest.mark.parametrize("layout", ["1.0", "1.1"])
def test_bfloat16_is_as_near_as_rounding_lets_it(layout):
    weights = fold(tiny.t5(layout).to(torch.bfloat16), tiny.PIECES)
    both = Both((model(weights, Tape), model(weights)), PROMPTS)
    assert both.extend(drawn(3, 3)) < BF16
    for width in range(1, 6):
        assert both.extend(drawn(3, width, width)) < BF16
        both.rollback([2, 0, 1])


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=len)
def test_decoding_gives_the_same_tokens(pair, prompts, gamma):
    fixed, free = pair
    draft = fold(tiny.t5(seed=1), tiny.PIECES)
    limits = Limits(20)
    numbers = uniforms(0, "static", [str(row) for row in range(len(prompts))], 20, gamma)
    drafts = (model(draft, Tape), model(draft)) if gamma else (None, None)
    for heat in (0.0, 1.0):
        got, wanted = (
            decode(target, other, gamma, prompts, Sampling(heat), limits, numbers)
            for target, other in zip((fixed, free), drafts, strict=True)
        )
        assert got == wanted


def test_a_model_that_is_its_own_draft_decodes_the_same(pair):
    fixed, free = pair
    numbers = uniforms(0, "own", ["0"], 20, 3)
    got, wanted = (
        decode(one, one, 3, PROMPTS[:1], Sampling(0.0), Limits(20), numbers)
        for one in (fixed, free)
    )
    assert got == wanted
    assert all(r.num_accepted == r.num_drafted for r in got.rounds[:-1])


def test_logits_outlive_later_passes(pair):
    fixed, _ = pair
    state = fixed.start(PROMPTS[:1], CAPACITY)
    first = fixed.extend(state, drawn(1, 1))
    kept = first.clone()
    fixed.extend(state, drawn(1, 1, 1))
    assert torch.equal(first, kept)


def test_states_alive_together_do_not_meet(pair):
    fixed, free = pair
    fixed.start(PROMPTS[:1], CAPACITY)  # buffers that came back are there to be taken
    one, other = Both((fixed, free), PROMPTS[:1]), Both((fixed, free), PROMPTS[1:2])
    assert one.states[0].memory.buffers is not other.states[0].memory.buffers
    for seed in range(3):
        assert one.extend(drawn(1, 2, seed)) < FP32
        assert other.extend(drawn(1, 3, seed + 7)) < FP32
        one.rollback([seed + 1])


def test_buffers_serve_the_next_state_and_show_it_nothing_of_the_last(pair):
    fixed, free = pair
    state = fixed.start(PROMPTS[2:], CAPACITY)
    buffers = state.memory.buffers
    fixed.extend(state, drawn(1, 20))
    with torch.inference_mode():
        memory = buffers.memory  # as a model leaves it whose activations overflowed
        for tensor in (memory.cache, *memory.cross_keys, *memory.cross_values):
            tensor.fill_(torch.nan)
    del state
    both = Both((fixed, free), PROMPTS[1:2])
    assert both.states[0].memory.buffers is buffers
    assert both.extend(drawn(1, 3)) < FP32
    assert both.extend(drawn(1, 1)) < FP32


def test_a_pass_is_recorded_once_for_all_prompts_of_a_size():
    fixed = model(fold(tiny.t5(), tiny.PIECES), Tape)
    Tape.num_recorded = 0
    for prompt in PROMPTS:
        state = fixed.start([prompt], CAPACITY)
        for width in (1, 2, 5, 2, 1):
            fixed.extend(state, drawn(1, width))
        del state
    assert Tape.num_recorded == 3
    fixed.extend(fixed.start([[5] * 65], CAPACITY), drawn(1, 1))
    assert Tape.num_recorded == 4


def test_recording_in_the_middle_leaves_what_is_cached():
    weights = fold(tiny.t5(), tiny.PIECES)
    both = Both((model(weights, Tape), model(weights)), PROMPTS)
    both.extend(drawn(3, 4))
    both.rollback([4, 1, 3])
    assert both.extend(drawn(3, 2)) < FP32
    both.rollback([5, 2, 4])
    assert both.extend(drawn(3, 1)) < FP32


@pytest.mark.parametrize("num_states", [1, 2])
def test_prepared_sizes_are_not_recorded_again(num_states):
    fixed = model(fold(tiny.t5(), tiny.PIECES), Tape)
    used = fixed.start(PROMPTS[:1], CAPACITY)
    fixed.extend(used, drawn(1, 20))
    del used
    fixed.prepare(1, 10, CAPACITY, range(1, 6), num_states)
    Tape.num_recorded = 0
    for _ in range(3):
        states = [fixed.start(PROMPTS[:1], CAPACITY) for _ in range(num_states)]
        for width in range(1, 6):
            for state in states:
                fixed.extend(state, drawn(1, width))
        del states, state
    assert Tape.num_recorded == 0


def test_buffers_of_another_batch_size_are_let_go():
    fixed = model(fold(tiny.t5(), tiny.PIECES), AsIs)
    fixed.prepare(1, 10, CAPACITY, [1])
    fixed.prepare(1, 100, CAPACITY, [1])
    assert {shape.batch for shape in fixed._pool._free} == {1}
    fixed.start(PROMPTS, CAPACITY)
    gc.collect()
    assert [(shape.batch, len(sets)) for shape, sets in fixed._pool._free.items()] == [(3, 1)]


def test_a_cpu_takes_shapes_as_they_come():
    assert recorders_for(torch.device("cpu")) is None
    assert recorders_for(torch.device("cuda:0")) is not None
    plain = model(fold(tiny.t5(), tiny.PIECES))
    plain.prepare(1, 10, CAPACITY, [1])
    assert plain.start(PROMPTS, 7).memory.cache.shape[1] == 7


def recorded_while_timed(folder, monkeypatch, draft):
    """Passes recorded by a whole sweep, and those of them inside timed generations."""
    config = Config(
        target="t", draft=(draft,), task=("x",), gamma=(1, 3), batch=(1, 2), max_new_tokens=9,
        temperature=(0.0,), turns=2,
    ).resolved()  # fmt: skip
    models = {name: model(fold(tiny.t5(seed=s), tiny.PIECES), Tape) for s, name in enumerate("td")}
    # the longest prompt is not in the first batch, and another size is
    prompts = [EncodedPrompt(f"p{i}", (7,) * length, False) for i, length in enumerate((3, 4, 70))]
    bench = Bench(models, Stopwatch(), lambda: None)
    groups = plan(config, "float32", "cpu")
    info = {"host": {}, "config": config.as_dict(), "prompts": {}, "models": {}}
    ready = Prepared(config, groups, bench, {"x": [*prompts, prompts[0]]}, info, [])
    found, generate = [], Bench.generate

    def counted(self, cell, items, repeat, limits=None):
        before = Tape.num_recorded
        result = generate(self, cell, items, repeat, limits)
        found.append(Tape.num_recorded - before if repeat >= 0 else 0)
        return result

    monkeypatch.setattr(Bench, "generate", counted)
    store = Store(folder)
    earlier = store.open(info, [cell for cells in groups for cell in cells])
    Tape.num_recorded = 0
    assert Sweep(ready, store, lambda *_: None, earlier).run() == 0
    return Tape.num_recorded, sum(found)


@pytest.mark.parametrize("draft", ["d", "t"])
def test_no_timed_generation_records(tmp_path, monkeypatch, draft):
    total, timed = recorded_while_timed(tmp_path / "one", monkeypatch, draft)
    assert total > 0
    assert timed == 0
    # the count sees what it must: without asking before, recordings fall into timed generations
    monkeypatch.setattr(Bench, "prepare", lambda *_: None)
    assert recorded_while_timed(tmp_path / "two", monkeypatch, draft)[1] > 0


class Waits(TorchDispatchMode):
    """Counts what makes a host wait for a device: a tensor's value asked for, host numbers made
    a tensor by anything but `placed`. Copies of whole tensors are counted where `tolist` is."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.found = []
        tolist, tensor = torch.Tensor.tolist, torch.tensor

        def listed(values):
            self.found.append("tolist")
            return tolist(values)

        def made(*given, **options):
            if not sys._getframe(1).f_code.co_filename.endswith("placement.py"):
                self.found.append("tensor")
            return tensor(*given, **options)

        monkeypatch.setattr(torch.Tensor, "tolist", listed)
        monkeypatch.setattr(torch, "tensor", made)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("new_recorder", [AsIs, None])
def test_a_round_waits_for_the_device_once(monkeypatch, heat, gamma, new_recorder):
    weights = fold(tiny.t5(), tiny.PIECES)
    target, draft = (model(weights, new_recorder) for _ in range(2))
    numbers = uniforms(0, "waits", ["0", "1", "2"], 20, gamma)
    limits, sampling = Limits(20, min_new_tokens=4), Sampling(heat, top_k=9, top_p=0.9)
    wanted = decode(target, draft if gamma else None, gamma, PROMPTS, sampling, limits, numbers)
    monkeypatch.setattr("specbench.decoding.outcome._is_on_host", lambda fact: False)
    with Waits(monkeypatch) as waits:
        got = decode(target, draft if gamma else None, gamma, PROMPTS, sampling, limits, numbers)
    assert got == wanted
    assert waits.found == ["tolist"] * len(got.rounds)
