"""Where the files of a model name are: embedded, in a folder, or on the Hugging Face hub.

Owns the three kinds of names and what is fetched for them. Knows nothing of what the files say.
The hub is asked only for what is not here, with a limit of a few seconds; its own cache and
variables (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, ...) are respected because its client is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from specbench.models.errors import ModelError

_HUB_SECONDS = 4.0
_FACTS = ["*.json", "*.model", "*.spm", "*.txt"]
_WEIGHTS = ["*.safetensors"]


@dataclass(frozen=True)
class Source:
    """The files of a model. commit: of the hub's repository, None for a folder on this disk."""

    name: str
    folder: Path
    commit: str | None = None


def locate(name: str, *, weights: bool = True) -> Source:
    """The files of `name`: pocket/NAME, a local folder, or a hub id with optional @revision.

    weights: whether the safetensors are needed too, or only configuration and tokenizer.
    Raises ModelError, in one line, when there are none or when they are not safetensors.
    """
    if not name:
        raise ModelError(f"model '': a name is needed; {_ALLOWED}")
    if name.startswith("pocket/"):
        source = Source(name, _pocket(name))
    elif (folder := Path(os.path.expanduser(name))).is_dir():  # noqa: PTH111  ~nobody is a name
        source = Source(name, folder)
    elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", name) and not name.startswith("."):
        source = _from_hub(name, weights)
    else:
        raise ModelError(f"model {name!r}: no such folder; {_ALLOWED}")
    if not (source.folder / "config.json").is_file():
        raise ModelError(f"model {name!r}: no config.json in {source.folder}")
    if weights:
        _check_weights(source)
    return source


def pocket_names() -> list[str]:
    """The names of the embedded models, as a user writes them."""
    root = _pocket_root()
    if not root.is_dir():
        return []
    return sorted(f"pocket/{path.parent.name}" for path in root.glob("*/config.json"))


def fingerprint(source: Source) -> str:
    """SHA-256 (hex) over the names and hashes of the safetensors files.

    The hub's cache names each file by its own SHA-256; that name is taken instead of reading.
    """
    total = hashlib.sha256()
    for path in sorted(source.folder.glob("*.safetensors")):
        blob = path.resolve().name
        if not re.fullmatch(r"[0-9a-f]{64}", blob):
            with path.open("rb") as file:
                blob = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name} {blob}\n".encode())
    return total.hexdigest()


def num_parameters(name: str) -> int | None:
    """How many numbers the safetensors of `name` hold, from their headers alone.

    None where the weights are on the hub and not on this machine; nothing is fetched for the
    answer. Raises ModelError for a local folder without safetensors, and for a file that is none.
    """
    source = locate(name, weights=False)
    paths = sorted(source.folder.glob("*.safetensors"))
    if source.commit is None:
        _check_weights(source)
    return sum(_num_numbers(source, path) for path in paths) if paths else None


def _num_numbers(source: Source, path: Path) -> int:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        # A text in the place of weights, such as an error page, claims a header beyond its end.
        header = file.read(size) if size <= path.stat().st_size else b""
    try:
        entries = json.loads(header)
        shapes = [entry["shape"] for key, entry in entries.items() if key != "__metadata__"]
        return sum(math.prod(shape) for shape in shapes)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"model {source.name!r}: {path} is no safetensors file") from None


_ALLOWED = "allowed are pocket/NAME, a folder, or a Hugging Face id with optional @revision"


def _pocket_root() -> Path:
    return Path(str(resources.files("specbench"))) / "pocket"


def _pocket(name: str) -> Path:
    if name not in pocket_names():
        known = ", ".join(pocket_names()) or "none in this installation"
        raise ModelError(f"model {name!r}: the embedded models are {known}")
    return _pocket_root() / name.removeprefix("pocket/")


def _check_weights(source: Source) -> None:
    if any(source.folder.glob("*.safetensors")):
        return
    others = sorted(path.name for path in source.folder.glob("*.bin"))
    found = f"only {others[0]}" if others else "no weights"
    raise ModelError(f"model {source.name!r}: {found} in {source.folder}; safetensors are needed")


def _from_hub(name: str, weights: bool) -> Source:
    repository, _, revision = name.partition("@")
    patterns = _FACTS + (_WEIGHTS if weights else [])
    folder = _cached(repository, revision or None, patterns)
    if folder is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        return Source(name, folder, revision)
    try:
        commit = _commit(repository, revision or None)
    except ConnectionError as error:
        if folder is None:
            raise ModelError(
                f"model {name!r}: no such folder, not in the local cache, and the hub cannot be "
                f"reached ({error})"
            ) from None
        return Source(name, folder, folder.name)
    return Source(name, _fetch(repository, commit, patterns), commit)


def _cached(repository: str, revision: str | None, patterns: list[str]) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        path = snapshot_download(
            repository, revision=revision, allow_patterns=patterns, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    return Path(path)


def _commit(repository: str, revision: str | None) -> str:
    """The commit that a revision means now. Raises ConnectionError when the hub is not there."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        commit = HfApi().model_info(repository, revision=revision, timeout=_HUB_SECONDS).sha
    except RevisionNotFoundError:
        raise ModelError(f"model {repository!r}: the hub has no revision {revision!r}") from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"model {repository!r}: no such folder, and not on the hub; {_ALLOWED}"
        ) from None
    except OfflineModeIsEnabled:
        raise ConnectionError("HF_HUB_OFFLINE is set") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        raise ModelError(f"model {repository!r}: the hub refused ({status})") from None
    except Exception as error:  # noqa: BLE001  the client's network errors share no base with its own
        raise ConnectionError(type(error).__name__) from None
    return str(commit)


def _fetch(repository: str, commit: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            repository, revision=commit, allow_patterns=patterns, etag_timeout=_HUB_SECONDS
        )
    except Exception as error:  # noqa: BLE001  network, disk: whatever it was, the user needs one line
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"model {repository!r}: download failed: {line}") from None
    return Path(path)
