"""Prompts: selection, prefixes, hashes, files that are not what they should be, no network."""

import json
import time

import pytest

from specbench.prompts import (
    PREFIXES,
    Prompt,
    PromptError,
    PromptSet,
    UnknownTask,
    encode,
    hosted,
    load_prompts,
    read_jsonl,
)


class Words:
    """One id for each word, 1 at the end of every text, as T5 has it."""

    def encode(self, text):
        return [10 + len(word) for word in text.split()] + [1]


class WordsWithStart(Words):
    """0 before and nothing after, as many causal tokenizers have it."""

    def encode(self, text):
        return [0] + [10 + len(word) for word in text.split()]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"file:{path}"


@pytest.fixture
def task(tmp_path):
    rows = [{"id": f"item-{n}", "source": f"A text, number {n}."} for n in range(40)]
    return write(tmp_path / "prompts.jsonl", rows)


def ids(prompt_set):
    return [prompt.id for prompt in prompt_set.prompts]


# Selection


def test_same_seed_same_prompts_and_another_seed_others(task):
    chosen = ids(load_prompts(task, limit=10, seed=0))
    assert len(chosen) == 10
    assert chosen == ids(load_prompts(task, limit=10, seed=0))
    assert chosen != ids(load_prompts(task, limit=10, seed=1))


def test_larger_limit_extends_a_smaller_one(task):
    chosen = load_prompts(task, limit=25, seed=0)
    assert ids(chosen)[:10] == ids(load_prompts(task, limit=10, seed=0))
    assert chosen.num_available == 40


def test_added_and_reordered_rows_leave_the_others_in_their_order(tmp_path, task):
    rows = [{"id": f"item-{n}", "source": f"A text, number {n}."} for n in reversed(range(60))]
    more = ids(load_prompts(write(tmp_path / "more.jsonl", rows), limit=None, seed=0))
    old = {f"item-{n}" for n in range(40)}
    assert [name for name in more if name in old] == ids(load_prompts(task, limit=None, seed=0))


def test_limit_above_what_there_is_takes_all(task):
    assert len(load_prompts(task, limit=1000, seed=0).prompts) == 40


def test_limit_below_one_is_refused(task):
    with pytest.raises(PromptError, match=r"--limit 0: allowed are integers >= 1"):
        load_prompts(task, limit=0, seed=0)


# Prefixes and the hash


def test_prefix_belongs_to_family_and_kind_and_is_part_of_the_text(task):
    plain = load_prompts(task, limit=3, seed=0, family="t5")
    translation = load_prompts(f"{task}#translation", limit=3, seed=0, family="t5")
    summary = load_prompts(f"{task}#summary", limit=3, seed=0, family="pocket")
    assert plain.prefix == ""
    assert translation.prefix == "translate English to German: "
    assert summary.prefix == "summarize: "
    assert translation.prompts[0].text == translation.prefix + plain.prompts[0].text
    assert ids(translation) == ids(plain)


def test_a_number_sign_may_be_the_path_s_own(tmp_path):
    task = write(tmp_path / "run#1.jsonl", [{"source": "text"}])
    assert load_prompts(task, limit=1, seed=0).prompts[0].text == "text"
    asked = load_prompts(f"{task}#summary", limit=1, seed=0, family="t5")
    assert asked.prompts[0].text == "summarize: text"
    with pytest.raises(UnknownTask, match=r"after # allowed are translation and summary"):
        load_prompts(f"{task}#poem", limit=1, seed=0)


def test_hash_covers_prefix_ids_and_texts(tmp_path):
    def sha(identity, source, prefix):
        task = write(tmp_path / "one.jsonl", [{"id": identity, "source": source}])
        return load_prompts(task, limit=1, seed=0, prefix=prefix).sha256

    base = sha("a", "text", "p: ")
    assert base == sha("a", "text", "p: ")
    others = {sha("b", "text", "p: "), sha("a", "Text", "p: "), sha("a", "text", "q: ")}
    # A prefix moved into the text is another prompt set, although the model reads the same.
    others.add(sha("a", "p: text", ""))
    assert base not in others
    assert len(others) == 4


@pytest.mark.parametrize("family", [None, "t5-v1_1", "bart"])
def test_unknown_family_must_be_given_a_prefix(task, family):
    with pytest.raises(PromptError, match="give it with --prefix"):
        load_prompts(f"{task}#translation", limit=1, seed=0, family=family)
    given = load_prompts(f"{task}#translation", limit=1, seed=0, family=family, prefix="")
    assert given.prefix == ""


def test_every_family_has_both_kinds():
    assert all({*table} == {"translation", "summary"} for table in PREFIXES.values())


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("wmt", r"--task wmt: allowed are pocket-ende, .* and file:PATH\.jsonl"),
        ("wmt14", r"is a script, which is never run; use wmt-ende, which reads wmt/wmt14"),
        ("cnn_dailymail", r"use cnn-dm, which reads abisee/cnn_dailymail"),
        ("file:x.jsonl#poem", r"after # allowed are translation and summary, found 'poem'"),
    ],
)
def test_unknown_task_names_what_is_allowed(task, message):
    with pytest.raises(PromptError, match=message):
        load_prompts(task, limit=1, seed=0)


# Files


def test_item_without_id_is_named_by_its_text(tmp_path):
    task = write(tmp_path / "a.jsonl", [{"source": "one"}, {"source": "two"}])
    first = ids(load_prompts(task, limit=None, seed=0))
    task = write(tmp_path / "b.jsonl", [{"source": "two"}, {"source": "zero"}, {"source": "one"}])
    assert [name for name in ids(load_prompts(task, limit=None, seed=0)) if name in first] == first


def test_blank_lines_numbers_as_ids_and_a_byte_order_mark_are_fine(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"id": 7, "source": "ä\u2028b", "reference": ""}\n\n', encoding="utf-8")
    assert read_jsonl(path) == [Prompt("7", "ä\u2028b", "")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ("\n \n", "holds no prompts"),
        ("<!DOCTYPE html>\n<html></html>\n", r":1: is not JSON; it looks like an HTML page"),
        ('{"source": "a"}\n{"source": "b"', r":2: is not JSON \("),
        ('{"source": "a"}\n["b"]', r":2: allowed is an object"),
        ('{"text": "a"}', r':1: the key "source" is missing'),
        ("[" * 100_000, r":1: is not JSON"),
        ('{"source": "a", "id": ' + "9" * 5000 + "}", r":1: is not JSON"),
        ('{"source": "  "}', r':1: "source" must be a text that is not empty'),
        ('{"source": 3}', r':1: "source" must be a text that is not empty'),
        ('{"source": "a", "reference": 3}', r':1: "reference" must be a text'),
        ('{"id": "x", "source": "a"}\n\n{"id": "x", "source": "b"}', r":3: .* already on line 1"),
    ],
)
def test_broken_file_names_file_and_line(tmp_path, content, message):
    path = tmp_path / "broken.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PromptError, match=message) as caught:
        load_prompts(f"file:{path}", limit=None, seed=0)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_and_missing_files_are_refused_in_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(PromptError, match="cannot be read: it is not UTF-8 text"):
        read_jsonl(tmp_path / "binary")
    with pytest.raises(PromptError, match="cannot be read: No such file"):
        read_jsonl(tmp_path / "missing.jsonl")


def test_repeated_texts_are_synthetic(tmp_path, task):
    assert not load_prompts(task, limit=None, seed=0).synthetic
    repeated = write(tmp_path / "a.jsonl", [{"source": "The same line."}] * 5)
    chosen = load_prompts(repeated, limit=None, seed=0)
    assert chosen.synthetic
    assert len(set(ids(chosen))) == 5
    loops = [{"source": f"The {n} of a line. " * 12} for n in range(5)]
    assert load_prompts(write(tmp_path / "b.jsonl", loops), limit=None, seed=0).synthetic


# Token ids


def prompt_set(*texts):
    prompts = tuple(Prompt(str(n), text) for n, text in enumerate(texts))
    return PromptSet("file:x", prompts, "", "", len(prompts))


def test_nothing_is_cut_unless_asked():
    long = " ".join(["word"] * 700)
    (item,) = encode(prompt_set(long), Words())
    assert len(item.token_ids) == 701
    assert not item.truncated


def test_cut_prompt_keeps_its_end_of_sequence_and_is_counted():
    short, cut = encode(prompt_set("a bb", "a bb ccc dddd"), Words(), max_prompt_tokens=3)
    assert (short.token_ids, short.truncated) == ((11, 12, 1), False)
    assert (cut.token_ids, cut.truncated) == ((11, 12, 1), True)


def test_cut_prompt_of_a_tokenizer_without_end_loses_only_its_tail():
    (cut,) = encode(prompt_set("a bb ccc dddd"), WordsWithStart(), max_prompt_tokens=3)
    assert cut.token_ids == (0, 11, 12)


def test_maximum_without_room_for_a_token_is_refused():
    with pytest.raises(PromptError, match=r"--max-prompt-tokens 1: allowed are integers >= 2"):
        encode(prompt_set("a bb"), Words(), max_prompt_tokens=1)


# Public data sets, without a network


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub cache, and a hub that refuses every connection."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return tmp_path / "hub"


def cached(hub, name):
    """Where the hub's client looks for the data file."""
    source = hosted.HOSTED[name]
    folder = hub / f"datasets--{source.repository.replace('/', '--')}"
    path = folder / "snapshots" / source.revision / source.file
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("name", ["wmt-ende", "cnn-dm"])
def test_cached_data_file_is_read_without_a_network(hub, name):
    from pyarrow import Table, parquet

    rows = {
        "wmt-ende": lambda n: {"translation": {"de": f"Satz {n}", "en": f"Sentence {n}"}},
        "cnn-dm": lambda n: {"article": f"Article {n}", "highlights": f"Short {n}", "id": f"{n:x}"},
    }
    table = [rows[name](n) for n in range(hosted.HOSTED[name].num_rows)]
    parquet.write_table(Table.from_pylist(table), cached(hub, name))
    chosen = load_prompts(name, limit=5, seed=0, family="t5")
    assert chosen.num_available == len(table)
    assert all(prompt.text.startswith(chosen.prefix) for prompt in chosen.prompts)
    if name == "wmt-ende":
        number = chosen.prompts[0].id.removeprefix("wmt14-")
        assert chosen.prompts[0].text.endswith(f": Sentence {number}")
        assert chosen.prompts[0].reference == f"Satz {number}"


def test_html_page_and_short_file_in_the_cache_are_errors(hub):
    from pyarrow import Table, parquet

    path = cached(hub, "cnn-dm")
    path.write_text("<!DOCTYPE html><html>Service unavailable</html>", encoding="utf-8")
    with pytest.raises(PromptError, match="is not the data file it should be"):
        load_prompts("cnn-dm", limit=5, seed=0, family="t5")
    row = {"article": "a", "highlights": "b", "id": "c"}
    parquet.write_table(Table.from_pylist([row]), path)
    with pytest.raises(PromptError, match="1 rows where 11490 are known"):
        load_prompts("cnn-dm", limit=5, seed=0, family="t5")


@pytest.mark.parametrize("offline", [True, False])
def test_without_network_and_cache_the_refusal_is_quick(hub, monkeypatch, offline):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    with pytest.raises(PromptError, match=r"not in the local cache .* use file:PATH\.jsonl"):
        load_prompts("wmt-ende", limit=5, seed=0, family="t5")
    assert sum(waited) < 5.0


@pytest.mark.network
@pytest.mark.parametrize("name", ["wmt-ende", "cnn-dm"])
def test_pinned_revision_is_there(name):
    assert len(load_prompts(name, limit=5, seed=0, family="t5").prompts) == 5
