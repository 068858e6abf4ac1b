"""Sentence pairs and summaries out of Debian's package descriptions.

Every Debian machine can fetch two parallel texts: the package descriptions in
English (``Translation-en``) and their German translation (``Translation-de``)
by the Debian Description Translation Project. This module

1. refreshes a *scratch* copy of the package lists through ``apt-get update``
   with the machine's own sources (nothing of the system's state is touched),
2. pairs the two languages by package and ``Description-md5`` (the digest of the
   English text that was translated, so both sides are the same revision),
3. splits descriptions into blocks (paragraphs, list items) and blocks into
   sentences, and pairs them only where the two sides have equally many,
4. pairs each long description with its own synopsis line for summarisation,
5. holds packages out *by name*, and drops every training item that repeats a
   held-out text (packages of one source share many sentences),
6. takes the translations that other releases of Debian add to these.

Output, as JSON lines with ``task, source, target, package``: ``train.jsonl``,
``heldout.jsonl``, ``releases.jsonl``. Sources carry no task prefix.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

RELEASES = ("bullseye", "bookworm", "trixie", "sid")
HELDOUT_PERMILLE = 40  # packages kept out of training, in thousandths
MAX_SUMMARY_WORDS = 70  # longer descriptions keep their head and last sentence
MAX_PAIR_WORDS = 75
MAX_SEEN_NGRAMS = 0.6  # a held-out prompt may share this much of its 5-grams with training

_ABBREVIATIONS = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|ca|bzw|usw|Nr|Dr|Mr|St|Inc|Ltd|Co|No|vgl|evtl|inkl|ggf|sog|"
    r"z\. ?B|d\. ?h|u\. ?a|o\. ?ä|z\. ?T|v|[A-Z]))\.$"
)
_BREAK = re.compile(r"(?<=[.!?])\s+(?=[\"„»“(]?[A-ZÄÖÜ0-9])")
_BULLET = re.compile(r"^\s*(?:[*+o•–-]|\d+[.)])\s+")


@dataclass(frozen=True)
class Item:
    """One training or evaluation example; ``task`` is ``ende`` or ``summary``."""

    task: str
    source: str
    target: str
    package: str


@dataclass(frozen=True)
class Description:
    """A package's synopsis and its long text as (is_list_item, text) blocks."""

    package: str
    digest: str
    synopsis: str
    blocks: tuple[tuple[bool, str], ...]


def apt_options(lists: Path) -> list[str]:
    """Return the options that keep apt's lists and cache inside ``lists``."""
    lists = lists.absolute()
    options = {
        "Dir::State::Lists": lists / "state",
        "Dir::Cache": lists / "cache",
        "Acquire::Languages": "en,de",
    }
    if (lists / "sources.list").exists():
        options |= {
            "Dir::Etc::SourceList": lists / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
        }
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def fetch(lists: Path) -> None:
    """Download the package lists in English and German into ``lists``, unless they are there.

    The sources are those of ``lists/sources.list`` if there is one, else the machine's own.
    """
    if (lists / "fetched").exists():
        return
    (lists / "state" / "partial").mkdir(parents=True, exist_ok=True)
    (lists / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", *apt_options(lists), "update"], check=True)
    (lists / "fetched").touch()


def add_releases(lists: Path, own: Path) -> None:
    """Write sources of Debian's other releases into ``lists``, from where ``own`` has its lists.

    There are none where the machine's own sources are of none of ``RELEASES``.
    """
    command = ["apt-get", *apt_options(own), "indextargets", "--format", "$(REPO_URI) $(CODENAME)"]
    answer = subprocess.run(
        [*command, "Created-By: Packages"], check=True, capture_output=True, text=True
    )
    places = {release: place for place, release in map(str.split, answer.stdout.splitlines())}
    known = [release for release in RELEASES if release in places]
    others = [release for release in RELEASES if release not in places] if known else []
    lists.mkdir(parents=True, exist_ok=True)
    lines = (f"deb {places[known[0]]} {release} main\n" for release in others)
    (lists / "sources.list").write_text("".join(lines))


def read_translation(lists: Path, language: str) -> Iterator[Description]:
    """Yield each description of every ``Translation-<language>`` list, in file order."""
    for path in sorted((lists / "state").glob(f"*_i18n_Translation-{language}*")):
        text = subprocess.run(
            ["/usr/lib/apt/apt-helper", "cat-file", str(path)], check=True, capture_output=True
        ).stdout.decode("utf-8", "replace")
        for stanza in text.split("\n\n"):
            description = parse_stanza(stanza, language)
            if description is not None:
                yield description


def parse_stanza(stanza: str, language: str) -> Description | None:
    """Return the description of one list entry, or None where a field is missing."""
    package = re.search(r"^Package: (.+)$", stanza, re.MULTILINE)
    digest = re.search(r"^Description-md5: (.+)$", stanza, re.MULTILINE)
    body = re.search(rf"^Description-{language}: (.*(?:\n .*)*)", stanza, re.MULTILINE)
    if not (package and digest and body):
        return None
    synopsis, *lines = body.group(1).split("\n")
    return Description(package.group(1), digest.group(1), tidy(synopsis), tuple(blocks(lines)))


def blocks(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """Yield (is_list_item, text): paragraphs joined, each list item on its own."""
    current: list[str] = []
    is_item = False
    for line in [*(line[1:] for line in lines), "."]:
        bullet = bool(_BULLET.match(line))
        ended = line.strip() == "."
        if (ended or bullet) and current:
            yield is_item, tidy(" ".join(current))
            current = []
        if ended:
            continue
        if bullet or not current:
            is_item = bullet
        current.append(_BULLET.sub("", line) if bullet else line)


def tidy(text: str) -> str:
    """Return ``text`` with plain spaces, plain quotes and plain dashes."""
    table = {
        "“": '"',
        "”": '"',
        "„": '"',
        "»": '"',
        "«": '"',
        "’": "'",
        "‘": "'",
        "…": "...",
        "–": "-",
        "—": "-",
        "‐": "-",
        "‑": "-",
        "\u00a0": " ",
        "\u200b": "",
        "``": '"',
        "''": '"',
    }
    for old, new in table.items():
        text = text.replace(old, new)
    return " ".join(text.split())


def sentences(text: str) -> list[str]:
    """Return ``text`` cut at sentence ends, mindful of common abbreviations."""
    parts: list[str] = []
    for piece in _BREAK.split(text):
        if parts and _ABBREVIATIONS.search(parts[-1]):
            parts[-1] += " " + piece
        else:
            parts.append(piece)
    return parts


def plausible(source: str, target: str) -> bool:
    """Whether two texts can be translations of each other, by length and by difference."""
    a, b = source.split(), target.split()
    if not (2 <= len(a) <= MAX_PAIR_WORDS and 1 <= len(b) <= MAX_PAIR_WORDS):
        return False
    ratio = (len(target) + 8) / (len(source) + 8)
    same = len(set(a) & set(b)) / len(set(a))
    return 0.6 <= ratio <= 1.9 and same <= 0.6 and "http" not in source and "<trans>" not in target


def translation_pairs(english: Description, german: Description) -> Iterator[tuple[str, str]]:
    """Yield aligned (English, German) sentences and whole multi-sentence paragraphs."""
    yield english.synopsis, german.synopsis
    if [kind for kind, _ in english.blocks] != [kind for kind, _ in german.blocks]:
        return
    for (_, left), (_, right) in zip(english.blocks, german.blocks, strict=True):
        lefts, rights = sentences(left), sentences(right)
        if len(lefts) == len(rights):
            yield from zip(lefts, rights, strict=True)
            for size in (2, 3):  # neighbouring sentences together, for longer outputs
                for at in range(0, len(lefts) - size + 1, size):
                    yield " ".join(lefts[at : at + size]), " ".join(rights[at : at + size])
        elif len(lefts) <= 4:
            yield left, right


def summary_source(description: Description) -> str:
    """Return the long description, cut at sentence ends to about ``MAX_SUMMARY_WORDS`` words.

    The last sentence stays: "This package contains the documentation." decides the synopsis.
    """
    parts = [part for _, block in description.blocks for part in sentences(block)]
    head: list[str] = []
    while parts and sum(len(part.split()) for part in [*head, parts[0]]) <= MAX_SUMMARY_WORDS - 12:
        head.append(parts.pop(0))
    if parts and len(parts[-1].split()) <= 24:
        head.append(parts[-1])
    return " ".join(head)


def items(english: list[Description], german: dict[tuple[str, str], Description]) -> Iterator[Item]:
    """Yield every distinct item: translations where German exists, summaries everywhere."""
    seen: set[tuple[str, str]] = set()
    for description in english:
        candidates = []
        translated = german.get((description.package, description.digest))
        if translated:
            candidates += [
                ("ende", a, b)
                for a, b in translation_pairs(description, translated)
                if plausible(a, b)
            ]
        source = summary_source(description)
        if len(source.split()) >= 8 and 2 <= len(description.synopsis.split()) <= 20:
            candidates.append(("summary", source, description.synopsis))
        for task, source, target in candidates:
            if (task, source) not in seen:
                seen.add((task, source))
                yield Item(task, source, target, description.package)


def is_heldout(package: str) -> bool:
    """Whether a package is kept out of training: a fixed hash of its name decides."""
    digest = hashlib.sha256(f"pocket:{package}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < HELDOUT_PERMILLE


def heldout_texts(held: list[Item]) -> set[str]:
    """Return the texts that training must not repeat: sources, targets, and their sentences."""
    return {
        text
        for item in held
        for whole in (item.source, item.target)
        for text in [whole, *sentences(whole)]
        if len(text.split()) > 3
    }


def trainable(everything: list[Item], forbidden: set[str]) -> list[Item]:
    """Return the items of packages not held out, without those that repeat a held-out text."""
    return [
        item
        for item in everything
        if not is_heldout(item.package)
        and not forbidden.intersection([item.source, item.target, *sentences(item.source)])
    ]


def split(everything: list[Item]) -> tuple[list[Item], list[Item]]:
    """Return (train, heldout) such that no held-out text occurs in training."""
    held = [item for item in everything if is_heldout(item.package)]
    train = trainable(everything, heldout_texts(held))
    known = {(item.task, gram) for item in train for gram in ngrams(item.source)}
    fresh = [item for item in held if seen_share(item, known) <= MAX_SEEN_NGRAMS]
    return train, fresh


def ngrams(text: str, size: int = 5) -> set[str]:
    """Return the word n-grams of ``text``."""
    words = text.lower().split()
    return {" ".join(words[at : at + size]) for at in range(len(words) - size + 1)}


def seen_share(item: Item, known: set[tuple[str, str]]) -> float:
    """Return the share of an item's source 5-grams that its task's training texts hold too."""
    grams = ngrams(item.source)
    return sum((item.task, gram) in known for gram in grams) / max(len(grams), 1)


def read_items(path: Path) -> list[Item]:
    """Return the items of a file of JSON lines."""
    return [Item(**json.loads(line)) for line in path.open(encoding="utf-8")]


def read_lists(lists: Path) -> list[Item]:
    """Return the items of all package lists below ``lists``."""
    german = {(d.package, d.digest): d for d in read_translation(lists, "de")}
    return list(items(list(read_translation(lists, "en")), german))


def main() -> None:
    """Write ``train.jsonl``, ``heldout.jsonl`` and ``releases.jsonl`` into the work folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    work: Path = parser.parse_args().work
    lists, others = work / "lists", work / "lists" / "releases"
    fetch(lists)
    everything = read_lists(lists)
    train, held = split(everything)
    add_releases(others, lists)
    fetch(others)
    known = {item.source for item in everything if item.task == "ende"}
    added = [i for i in read_lists(others) if i.task == "ende" and i.source not in known]
    releases = trainable(added, heldout_texts(held))
    for name, part in (("train", train), ("heldout", held), ("releases", releases)):
        lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in part)
        (work / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        counts = {task: sum(item.task == task for item in part) for task in ("ende", "summary")}
        print(f"{name}: {counts}")


if __name__ == "__main__":
    main()
