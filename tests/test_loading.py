"""Models by name: what is found, what is recorded, and what is refused in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import socket
import time

import pytest
import tiny
import torch
from fakes import TableModel, random_table
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, T5ForConditionalGeneration

from specbench.experiment.config import Config
from specbench.experiment.prepare import outline, prepare
from specbench.models import (
    LeanT5,
    ModelError,
    TransformersModel,
    check_pair,
    describe,
    load_model,
    load_tokenizer,
    locate,
    num_parameters,
    pairing,
    pocket_names,
    probe,
    resolve_device,
    resolve_dtype,
    sources,
)
from specbench.models.family import family_of, task_prefixes

CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny.save(tiny.t5(), tmp_path_factory.mktemp("t5"))


def refusal(call, *args, **kwargs):
    with pytest.raises(ModelError) as caught:
        call(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.__cause__ is None
    return line


def logits_of(model, tokens):
    return model.extend(model.start([[5, 6, 1]], 8), tokens)


@pytest.mark.parametrize("layout", ["1.0", "1.1"])
@pytest.mark.parametrize("as_the_hub_has_it", [False, True])
def test_a_folder_gives_the_numbers_of_transformers(tmp_path, layout, as_the_hub_has_it):
    # checkpoints of T5 1.1 say tie_word_embeddings false, which means "do not scale"; files
    # that transformers 5 saved again say it in scale_decoder_outputs
    changes = {}
    if as_the_hub_has_it:
        changes = {"scale_decoder_outputs": None, "tie_word_embeddings": layout == "1.0"}
    folder = tiny.save(tiny.t5(layout), tmp_path, **changes)
    network = T5ForConditionalGeneration.from_pretrained(folder).eval()
    model = load_model(folder, dtype="float32", **CPU)
    tokens = torch.tensor([[0, 9, 8, 7]])
    with torch.no_grad():
        wanted = network(input_ids=torch.tensor([[5, 6, 1]]), decoder_input_ids=tokens).logits
    assert network.config.scale_decoder_outputs is (layout == "1.0")
    torch.testing.assert_close(logits_of(model, tokens), wanted[..., : tiny.PIECES])


def test_what_is_recorded(checkpoint):
    model = load_model(checkpoint, **CPU)
    facts = describe(model)
    json.dumps(facts)
    assert isinstance(model, LeanT5)
    assert (model.name, model.vocab_size, model.eos_token) == (checkpoint, tiny.PIECES, 1)
    shown = {
        key: facts[key] for key in ("engine", "dtype", "num_layers", "num_decoder_layers", "width")
    }
    assert shown == {
        "engine": "lean",
        "dtype": "float32",
        "num_layers": 2,
        "num_decoder_layers": 3,
        "width": 24,
    }
    assert facts["logits_size"] == tiny.PADDED
    assert facts["num_parameters"] == sum(p.numel() for p in tiny.t5().parameters())
    assert len(facts["weights_sha256"]) == 64


def test_the_fingerprint_follows_the_weights(tmp_path):
    prints = []
    for seed in (0, 0, 1):
        folder = tmp_path / str(len(prints))
        tiny.save(tiny.t5(seed=seed), folder)
        prints.append(sources.fingerprint(locate(str(folder))))
    assert prints[0] == prints[1] != prints[2]


def test_the_hubs_blob_names_are_taken_as_hashes(tmp_path):
    folder = tmp_path / "plain"
    tiny.save(tiny.t5(), folder)
    plain = sources.fingerprint(locate(str(folder)))
    weights = folder / "model.safetensors"
    blob = tmp_path / hashlib.sha256(weights.read_bytes()).hexdigest()
    weights.rename(blob)
    weights.symlink_to(blob)
    assert sources.fingerprint(locate(str(folder))) == plain
    blob.write_bytes(b"never read again")
    assert sources.fingerprint(locate(str(folder))) == plain


def test_lean_and_adapter_agree_on_one_checkpoint(checkpoint):
    tokens = torch.tensor([[0, 9, 8, 7]])
    lean, adapted = load_model(checkpoint, **CPU), load_model(checkpoint, lean=False, **CPU)
    assert isinstance(adapted, TransformersModel)
    torch.testing.assert_close(logits_of(lean, tokens), logits_of(adapted, tokens))


def test_loading_says_nothing(checkpoint, capfd, caplog):
    with caplog.at_level(logging.DEBUG, logger="transformers"):
        load_model(checkpoint, **CPU)
    assert capfd.readouterr() == ("", "")


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "the embedded models are" in refusal(load_model, "pocket/none")
    assert "no config.json" in refusal(load_model, str(tmp_path))
    assert "no such folder; allowed are pocket/NAME" in refusal(load_model, "./nowhere/at/all")


def test_only_safetensors(tmp_path):
    folder = tiny.save(tiny.t5(), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    line = refusal(load_model, folder, **CPU)
    assert "only pytorch_model.bin" in line
    assert "safetensors are needed" in line
    assert load_tokenizer(folder).vocab_size == tiny.PIECES


def test_a_size_is_told_without_loading_and_refused_like_loading(tmp_path, checkpoint):
    assert num_parameters(checkpoint) == load_model(checkpoint, **CPU).facts["num_parameters"]
    folder = tiny.save(tiny.t5(), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "pytorch_model.bin")
    assert refusal(num_parameters, folder) == refusal(load_model, folder, **CPU)
    for damaged in (b"<html>not found</html>", b"\x02" + bytes(7) + b"[]", b""):
        weights.write_bytes(damaged)
        assert refusal(num_parameters, folder).endswith("model.safetensors is no safetensors file")


def test_missing_tokenizer_files_are_named(tmp_path):
    folder = tiny.save(tiny.t5(), tmp_path)
    for path in tmp_path.glob("tokenizer*"):
        path.unlink()
    line = refusal(load_tokenizer, folder)
    assert f"no tokenizer in {folder}; none of spiece.model, tokenizer.json is there" in line


def test_weights_that_are_not_what_config_says(tmp_path):
    folder = tiny.save(tiny.t5(), tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    gone = "decoder.block.1.layer.2.DenseReluDense.wo.weight"
    save_file({k: v for k, v in weights.items() if k != gone}, path, {"format": "pt"})
    assert f"missing keys: {gone}" in refusal(load_model, folder, **CPU)
    save_file(weights | {gone: weights[gone][:, 1:].contiguous()}, path, {"format": "pt"})
    assert f"mismatched keys: ('{gone}'" in refusal(load_model, folder, **CPU)
    path.write_bytes(b"<html>not found</html>")
    assert "cannot be loaded" in refusal(load_model, folder, **CPU)


def test_a_broken_configuration(tmp_path):
    folder = tiny.save(tiny.t5(), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "none such"}')
    assert "config.json cannot be used" in refusal(load_model, folder, **CPU)
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be used" in refusal(load_model, folder, **CPU)


def test_more_pieces_than_logits(tmp_path):
    folder = tiny.save(tiny.t5(vocab_size=50), tmp_path)
    assert "60 pieces in its tokenizer, but only 50 logits" in refusal(load_model, folder, **CPU)


def test_half_precision_t5_is_refused(checkpoint):
    line = refusal(load_model, checkpoint, dtype="float16", **CPU)
    assert "use bfloat16 or float32" in line


def test_bfloat16_is_loaded_and_recorded(checkpoint):
    model = load_model(checkpoint, dtype="bfloat16", **CPU)
    assert describe(model)["dtype"] == model.dtype == "bfloat16"
    assert logits_of(model, torch.tensor([[0]])).dtype == torch.float32


def test_mixed_dtypes_are_named(tmp_path):
    config = GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=tiny.PIECES, eos_token_id=1, bos_token_id=1
    )
    network = GPT2LMHeadModel(config)
    network.transformer.ln_f.to(torch.bfloat16)
    from specbench.models.loading import _dtypes

    assert _dtypes(network) == "float32+bfloat16"


def test_without_sentencepiece_the_message_says_what_to_install(checkpoint, monkeypatch):
    import transformers

    def refuse(*args, **kwargs):
        raise ImportError("T5Tokenizer requires the SentencePiece library\nbut it was not found")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    assert "pip install sentencepiece" in refusal(load_tokenizer, checkpoint)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_without_a_network_the_answer_comes_soon(no_network, monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    line = refusal(load_model, "google-t5/t5-small@main", **CPU)
    assert "not in the local cache, and the hub cannot be reached" in line
    assert sum(waited) < 5


def test_a_cached_commit_needs_no_network(no_network, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / commit
    tiny.save(tiny.t5(), snapshot)
    source = locate(f"some/model@{commit}")
    assert (source.folder, source.commit) == (snapshot, commit)
    assert describe(load_model(f"some/model@{commit}", **CPU))["commit"] == commit


def test_a_plan_and_a_refused_pair_fetch_no_weights(tmp_path, monkeypatch):
    folders = {"org/a": tmp_path / "a", "org/b": tmp_path / "b"}
    for folder in folders.values():
        tiny.save(tiny.t5(), folder)
    asked = []

    def from_hub(name, weights):
        asked.append(weights)
        return sources.Source(name, folders[name], "0" * 40)

    monkeypatch.setattr(sources, "_from_hub", from_hub)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"source": "w5 w6"}')
    config = Config(target="org/a", draft=("org/b",), task=(f"file:{prompts}",), gamma=(1,))
    outline(config.resolved())
    assert asked
    assert not any(asked)
    tiny.tokenizer(swapped=(5, 6)).save_pretrained(folders["org/b"])
    assert "differ first at id 5" in refusal(prepare, config.resolved())
    assert not any(asked)


def test_a_model_that_breaks_in_its_first_step_is_refused():
    model = TableModel(random_table(1))
    model.extend = lambda state, tokens: torch.zeros(1)[2]
    assert "its first step breaks (IndexError: index 2 is out of" in refusal(probe, model)


def test_embedded_names_are_listed(tmp_path, monkeypatch):
    tiny.save(tiny.t5(), tmp_path / "pocket" / "tiny")
    monkeypatch.setattr(sources, "_pocket_root", lambda: tmp_path / "pocket")
    assert pocket_names() == ["pocket/tiny"]
    assert describe(load_model("pocket/tiny", **CPU))["family"] == "pocket"
    assert "the embedded models are pocket/tiny" in refusal(load_model, "pocket/other")


def test_tokenizer_wrapper(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.encode("w10 w4") == [10, 4, 1]
    assert tokenizer.decode([10, 4, 1]) == "w10 w4"
    assert tokenizer.encode("w10 " * 600)[-1] == 1
    assert len(tokenizer.encode("w10 " * 600)) == 601
    assert (tokenizer.eos_token, tokenizer.start_token) == (1, 0)
    assert (tokenizer.vocab_size, tokenizer.logits_size) == (tiny.PIECES, tiny.PADDED)
    assert tokenizer.piece(10) == "\u2581w10"
    assert tokenizer.piece(tiny.PIECES) is None


def test_pairs_need_no_weights(tmp_path, checkpoint):
    draft = tmp_path / "draft"
    tiny.save(tiny.t5(vocab_size=72), draft)
    (draft / "model.safetensors").unlink()
    target, other = load_tokenizer(checkpoint), load_tokenizer(str(draft))
    assert check_pair(target, target) == []
    (note,) = check_pair(target, other)
    assert "64 and 72" in note
    assert "60 pieces" in note


def test_a_differing_piece_is_named(tmp_path, checkpoint):
    draft = tmp_path / "draft"
    tiny.save(tiny.t5(), draft)
    tiny.tokenizer(swapped=(17, 23)).save_pretrained(draft)
    line = refusal(check_pair, load_tokenizer(checkpoint), load_tokenizer(str(draft)))
    assert "differ first at id 17" in line
    assert "'\u2581w17' in the target" in line
    assert "'\u2581w23' in the draft" in line


def test_a_shorter_tokenizer_is_named_with_both_sizes(tmp_path, checkpoint):
    draft = tmp_path / "draft"
    tiny.save(tiny.t5(), draft, size=58)
    line = refusal(check_pair, load_tokenizer(checkpoint), load_tokenizer(str(draft)))
    assert "'\u2581w58' in the target (60 pieces), nothing in the draft (58 pieces)" in line


def test_other_ends_and_starts_are_refused(tmp_path, checkpoint):
    for key, word in (("eos_token_id", "eos token"), ("decoder_start_token_id", "start token")):
        draft = tmp_path / key
        tiny.save(tiny.t5(), draft, **{key: 7})
        line = refusal(check_pair, load_tokenizer(checkpoint), load_tokenizer(str(draft)))
        assert f"{word} is" in line
        assert "7 in the draft" in line


def test_texts_encoded_differently_are_refused(tmp_path, checkpoint):
    target = load_tokenizer(checkpoint)
    draft = load_tokenizer(checkpoint)
    from tokenizers import normalizers

    draft.backend.backend_tokenizer.normalizer = normalizers.Replace("The", "w9")
    assert "they encode 'The house is wonderful.' differently" in refusal(check_pair, target, draft)


@pytest.mark.parametrize(
    ("start_token", "num_prompt", "num_output", "lacks"),
    [
        (None, 100, 29, False), (None, 100, 30, True),  # one sequence; its last token is not read
        (0, 128, 128, False), (0, 129, 1, True), (0, 1, 129, True),
    ],
)  # fmt: skip
def test_room_for_prompt_and_output(checkpoint, start_token, num_prompt, num_output, lacks):
    found = load_tokenizer(checkpoint)
    assert found.max_positions is None  # T5 has no table of positions
    assert not found.lacks_room_for(10**6, 10**6)
    bounded = dataclasses.replace(found, start_token=start_token, max_positions=128)
    assert bounded.lacks_room_for(num_prompt, num_output) == lacks


def test_probe_names_the_model_whose_logits_are_not_finite(checkpoint):
    model = load_model(checkpoint, **CPU)
    pairing.probe(model)
    model.weights.decoder.embedding.fill_(float("nan"))
    line = refusal(probe, model)
    assert checkpoint in line
    assert line.endswith("weights are damaged")  # in float32 already
    model.dtype = "float16"
    assert refusal(probe, model).endswith("or need --dtype float32")


def test_devices_and_dtypes():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda:0")) == torch.bfloat16
    assert "allowed are auto, cpu, cuda" in refusal(resolve_device, "gpu")
    assert "allowed are auto, cpu, cuda" in refusal(resolve_device, "meta")
    assert "CUDA devices" in refusal(resolve_device, "cuda:99")
    assert "allowed are auto, float32" in refusal(resolve_dtype, "fp16", torch.device("cpu"))


def test_families():
    v10, v11 = tiny.t5().config, tiny.t5("1.1").config
    assert family_of("pocket/x", v10) == "pocket"
    assert family_of("google-t5/t5-small", v10) == "t5"
    assert family_of("t5-base@main", v10) == "t5"
    assert family_of("google/flan-t5-base", v11) == "flan-t5"
    assert family_of("google/t5-v1_1-base", v11) == "t5-v1_1"
    assert family_of("/home/me/my-own", v10) is None
    assert family_of("/home/flanagan/v1_1/my-own", v10) is None
    assert family_of("/models/my-flan-t5-base", v11) == "flan-t5"
    v10.task_specific_params = {"summarization": {"prefix": "summarize: ", "num_beams": 4}}
    assert family_of("/home/me/a-copy", v10) == "t5"
    assert task_prefixes(v10) == {"summarization": "summarize: "}
    assert family_of("gpt2", GPT2Config()) == "gpt2"
