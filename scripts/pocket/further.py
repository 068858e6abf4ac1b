"""More sentence pairs for the target, out of the documentation inside Debian's packages.

The descriptions (``corpus``) alone make a target that knows them by heart and stumbles
over any everyday word that they happen to lack. Debian's binary packages hold more
English with its German translation:

* message catalogues (``LC_MESSAGES/*.mo``): pairs as they are,
* manuals as HTML pages, both languages made from one source: the same sequence of blocks,
* manual pages, likewise, section by section,
* a dictionary with example sentences (``trans-de-en``), as far as the descriptions know its words.

A text is taken only where the two structures agree, is filtered as in ``corpus``, and
dropped if it repeats a held-out text. Output: ``further.jsonl``, as JSON lines with
``task, source, target, package``.
"""

from __future__ import annotations

import argparse
import gettext
import gzip
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

from corpus import Item, apt_options, heldout_texts, plausible, read_items, sentences, tidy

PACKAGES = [
    "trans-de-en",
    "gimp-help-en",
    "gimp-help-de",
    "debian-handbook",
    "debian-reference-en",
    "debian-reference-de",
    "debian-faq",
    "debian-faq-de",
    "developers-reference",
    "developers-reference-de",
    "maint-guide",
    "maint-guide-de",
    "installation-guide-amd64",
    "manpages",
    "manpages-dev",
    "manpages-de",
    "manpages-de-dev",
    "apt",
    "aptitude-common",
    "bash",
    "binutils-common",
    "coreutils",
    "dbconfig-common",
    "deja-dup",
    "digikam-data",
    "dpkg",
    "evolution-common",
    "gcc-12-locales",
    "gettext",
    "gimp-data",
    "gnucash-common",
    "gnupg-l10n",
    "inkscape",
    "iso-codes",
    "libc-l10n",
    "libsane-common",
    "mutt",
    "nano-tiny",
    "nautilus-data",
    "sane-utils",
    "scribus-data",
    "util-linux-locales",
    "vim-runtime",
    "vlc-l10n",
    "wget",
    "wireshark-common",
]
DICTIONARY = "trans-de-en"
MAX_WORDS = 45
MIN_LETTERS = 0.8  # of the characters of a source
MIN_SEEN, MIN_SEEN_SHORT = 3, 40  # how often the descriptions hold each word of a dictionary entry
SHORT_WORDS = 4  # a dictionary entry of at most so many words is short

Block = tuple[str, str]  # its kind (a tag, a macro) and its text

_BLOCK_TAGS = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "td", "th", "title"}
_LISTING_TAGS = {"pre", "script", "style"}
_JOINING_MACROS = {".BR", ".IR", ".BI", ".IB", ".RB", ".RI"}
_FONT_MACROS = {".B", ".I", ".SM", *_JOINING_MACROS}
_INLINE_MACROS = {".br", ".UR", ".UE", ".MT", ".ME", ".hy", ".ad", ".na"}
_ROFF_MARKS = re.compile(r"\\f(?:\[[^\]]*\]|\(..|.)|\\[&|/,^%:]|\\s[+-]?\d")
_ROFF_SIGNS = [
    (re.compile(r"\\\([lrd]q|\\\*\([lr]q"), '"'),
    (re.compile(r"\\\([aco]q"), "'"),
    (re.compile(r"\\-|\\\(e[mn]"), "-"),
    (re.compile(r"\\e"), "\\\\"),
    (re.compile(r"\\ "), " "),
]
_MENU_MARKS = re.compile(r"</?[a-z]+[^>]*>|(?<=\w)_(?=\w)|\b_|&(?=\w)|~(?=\w)")
_GRAMMAR = re.compile(r"\s*(?:\{[^}]*\}|\[[^\]]*\]|<[^>]*>|/[^/ ]*/)")
_ABBREVIATED = re.compile(r"[/()]|etw\.|sth\.|sb\.|jdn|jdm")
_CODE = re.compile(r"[%{}\\<>|_]|\$\w|::|[lg]t;")


def fetch(root: Path) -> None:
    """Download the packages with apt and unpack each into a folder of its name below ``root``."""
    debs = root / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", *apt_options(root.parent), "download", *PACKAGES]
    subprocess.run(command, check=True, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        package = deb.name.partition("_")[0]
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root / package)], check=True)


class Page(HTMLParser):
    """Collects the text blocks of a page in ``blocks``; listings are left out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self._tag, self._words, self._listings = "", [], 0
        self.feed(text)

    def _close(self) -> None:
        text = tidy("".join(self._words))
        if self._tag and text:
            self.blocks.append((self._tag, text))
        self._tag, self._words = "", []

    def handle_starttag(self, tag: str, attrs: list) -> None:  # noqa: ARG002
        """Begin a block or a listing."""
        self._listings += tag in _LISTING_TAGS
        if tag in _BLOCK_TAGS:
            self._close()
            self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        """End a block or a listing."""
        self._listings -= tag in _LISTING_TAGS
        if tag in _BLOCK_TAGS:
            self._close()

    def handle_data(self, data: str) -> None:
        """Keep the text of a block."""
        if not self._listings:
            self._words.append(data)


def roff_text(words: list[str]) -> str:
    """Return the plain text of lines of a manual page."""
    text = _ROFF_MARKS.sub("", " ".join(words))
    for sign, plain in _ROFF_SIGNS:
        text = sign.sub(plain, text)
    return tidy(text)


class Manual:
    """Collects the paragraphs of a manual page by section, without the translators' own section."""

    def __init__(self, text: str) -> None:
        self.sections: list[list[Block]] = [[]]
        self._macro, self._words, self._in_listing = "", [], False
        for line in text.splitlines():
            if line.startswith(('.SH "ÜBERSETZUNG', ".SH ÜBERSETZUNG")):
                break
            self._read(line)
        self._close()

    def _close(self) -> None:
        text = roff_text(self._words)
        if text:
            self.sections[-1].append((self._macro, text))
        self._words.clear()

    def _read(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name in _INLINE_MACROS or line.startswith((".\\", "'\\")):
            return
        if name in _FONT_MACROS:
            parts = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', rest)]
            self._words.append(("" if name in _JOINING_MACROS else " ").join(parts))
        elif line.startswith("."):
            self._begin(name, rest)
        elif not self._in_listing:
            self._words.append(line)

    def _begin(self, macro: str, rest: str) -> None:
        self._close()
        self._macro = macro
        self._in_listing = macro in (".nf", ".EX") or (
            self._in_listing and macro not in (".fi", ".EE")
        )
        if macro == ".SH":
            self.sections.append([])
        if macro in (".SH", ".SS"):
            self._words.append(rest.strip('"'))
            self._close()


def paired(english: list[Block], german: list[Block]) -> Iterator[tuple[str, str]]:
    """Yield the sentences of blocks that are of the same kinds in the same order."""
    if [kind for kind, _ in english] != [kind for kind, _ in german]:
        return
    for (_, left), (_, right) in zip(english, german, strict=True):
        lefts, rights = sentences(left), sentences(right)
        if len(lefts) == len(rights):
            yield from zip(lefts, rights, strict=True)
        elif len(lefts) <= 3:
            yield left, right


def english_page(root: Path, german: Path) -> Path | None:
    """Return the English counterpart of a German HTML page, by the habits of these packages."""
    package, _, inner = str(german.relative_to(root)).partition("/")
    plain = package.removesuffix("-de")
    for folder in ("/", "/en/", "/en-US/"):
        for ending in (".de.html", ".en.html", ".html"):
            guess = re.sub(r"/de(?:-DE)?/", folder, inner).replace(".de.html", ending)
            for name in (plain, f"{plain}-en"):
                page = root / name / guess
                if page.exists() and page != german:
                    return page
    return None


def manual_pairs(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (English, German, package) out of HTML manuals and manual pages below ``root``."""
    for path in sorted(root.glob("*/usr/share/**/*.html")):
        is_german = re.search(r"/de(?:-DE)?/|\.de\.html$", str(path))
        twin = english_page(root, path) if is_german else None
        if twin:
            pages = [Page(side.read_text("utf-8", "replace")).blocks for side in (twin, path)]
            for pair in paired(*pages):
                yield *pair, path.relative_to(root).parts[0]
    pages = sorted(root.glob("*/usr/share/man/man?/*.gz"))
    english = {f"{page.parent.name}/{page.name}": page for page in pages}
    for path in sorted(root.glob("*/usr/share/man/de/man?/*.gz")):
        twin = english.get(f"{path.parent.name}/{path.name}")
        if twin:
            lefts, rights = (Manual(unzipped(side)).sections for side in (twin, path))
            for left, right in zip(lefts, rights, strict=True) if len(lefts) == len(rights) else ():
                for pair in paired(left, right):
                    yield *pair, path.relative_to(root).parts[0]


def unzipped(path: Path) -> str:
    """Return the text of a compressed page."""
    return gzip.decompress(path.read_bytes()).decode("utf-8", "replace")


def catalogue_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the messages of a ``.mo`` catalogue without tags and the marks of menu keys."""
    with path.open("rb") as stream:
        messages = gettext.GNUTranslations(stream)._catalog  # there is no public list of them
    for key, target in messages.items():
        if not isinstance(key, str) or not key:  # the header; plural forms
            continue
        source = key.rpartition("\x04")[2]  # without its context
        sides = [sentences(_MENU_MARKS.sub("", tidy(text))) for text in (source, target)]
        if len(sides[0]) == len(sides[1]):
            yield from zip(*sides, strict=True)


def dictionary_pairs(path: Path, known: Counter) -> Iterator[tuple[str, str]]:
    """Yield the entries and examples of the dictionary whose English words are ``known``."""
    for line in path.read_text("utf-8").splitlines():
        german, _, english = line.partition(" :: ")
        lefts, rights = english.split(" | "), german.split(" | ")
        if line.startswith("#") or len(lefts) != len(rights):
            continue
        for left, right in zip(lefts, rights, strict=True):
            source, target = (
                tidy(_GRAMMAR.sub("", side.partition(";")[0])) for side in (left, right)
            )
            words = words_of(source)
            least = MIN_SEEN_SHORT if len(words) <= SHORT_WORDS else MIN_SEEN
            if not _ABBREVIATED.search(source + target) and all(known[w] >= least for w in words):
                yield source, target


def words_of(text: str) -> list[str]:
    """Return the English words of ``text`` in small letters."""
    return re.findall(r"[a-z']+", text.lower())


def fits(source: str, target: str) -> bool:
    """Whether a pair is prose, of moderate length, and plausible."""
    letters = sum(char.isalpha() or char == " " for char in source)
    return (
        plausible(source, target)
        and max(len(source.split()), len(target.split())) <= MAX_WORDS
        and letters >= MIN_LETTERS * len(source)
        and not _CODE.search(source + target)
    )


def pairs(root: Path, known: Counter) -> Iterator[tuple[str, str, str]]:
    """Yield (English, German, package) of every text of the unpacked packages."""
    for path in sorted(root.glob("*/usr/share/locale/de/LC_MESSAGES/*.mo")):
        for pair in catalogue_pairs(path):
            yield *pair, path.relative_to(root).parts[0]
    yield from manual_pairs(root)
    for path in sorted(root.glob(f"{DICTIONARY}/usr/share/trans/de-en")):
        for pair in dictionary_pairs(path, known):
            yield *pair, DICTIONARY


def main() -> None:
    """Write ``further.jsonl`` into the work folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    work: Path = parser.parse_args().work
    root = work / "lists" / "packages"
    if not (root / "fetched").exists():
        fetch(root)
        (root / "fetched").touch()
    forbidden = heldout_texts(read_items(work / "heldout.jsonl"))
    train = read_items(work / "train.jsonl")
    known = Counter(word for item in train for word in words_of(item.source))
    found: dict[str, Item] = {}
    for source, target, package in pairs(root, known):
        if source not in found and fits(source, target) and not forbidden & {source, target}:
            found[source] = Item("ende", source, target, package)
    lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in found.values())
    (work / "further.jsonl").write_text("".join(lines), encoding="utf-8")
    for package, count in Counter(item.package for item in found.values()).most_common():
        print(f"{package}: {count}")
    print(f"further: {len(found)}")


if __name__ == "__main__":
    main()
