"""Items from public data sets: one data file each, at a fixed revision, from the hub's cache.

Owns the only import of `datasets`. No data set script is ever run, and the train splits that lie
beside a test file are never fetched. Offline variables of the hub's client are respected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.prompts.items import Prompt, PromptError


@dataclass(frozen=True)
class Hosted:
    """One data file of a public data set; `unpack` turns a row number and a row into an item.

    num_rows: how many there are at this revision, so that a file cut short is noticed.
    """

    repository: str
    revision: str
    file: str
    num_rows: int
    unpack: Callable[[int, dict[str, Any]], Prompt]

    @property
    def name(self) -> str:
        """Repository, short revision and file, for messages."""
        return f"{self.repository}@{self.revision[:7]}/{self.file}"


HOSTED = {
    "wmt-ende": Hosted(
        repository="wmt/wmt14",
        revision="b199e406369ec1b7634206d3ded5ba45de2fe696",
        file="de-en/test-00000-of-00001.parquet",
        num_rows=3003,
        unpack=lambda index, row: Prompt(
            f"wmt14-{index}", row["translation"]["en"], row["translation"]["de"]
        ),
    ),
    "cnn-dm": Hosted(
        repository="abisee/cnn_dailymail",
        revision="96df5e686bee6baa90b8bee7c28b81fa3fa6223d",
        file="3.0.0/test-00000-of-00001.parquet",
        num_rows=11490,
        unpack=lambda _, row: Prompt(row["id"], row["article"], row["highlights"]),
    ),
}


def read_hosted(hosted: Hosted) -> list[Prompt]:
    """The items of a hosted file, in its order. Raises PromptError when they cannot be had."""
    path = _fetch(hosted)
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        rows: Iterable[dict[str, Any]] = Dataset.from_parquet(str(path))
        items = [hosted.unpack(index, row) for index, row in enumerate(rows)]
    except (DatasetGenerationError, OSError, ValueError, KeyError, TypeError) as error:
        raise PromptError(
            f"{hosted.name}: the local copy is not the data file it should be "
            f"({type(error).__name__}); delete {path} and fetch it again"
        ) from None
    if len(items) != hosted.num_rows:
        raise PromptError(
            f"{hosted.name}: {len(items)} rows where {hosted.num_rows} are known; delete {path} "
            "and fetch it again"
        )
    return items


def _fetch(hosted: Hosted) -> Path:
    """The local path of the data file, from the cache when it is there.

    The hub's client retries a dead network for half a minute, so one quick question comes first.
    """
    from huggingface_hub import constants, get_session, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def download(local_only: bool) -> Path:
        return Path(
            hf_hub_download(
                hosted.repository,
                hosted.file,
                repo_type="dataset",
                revision=hosted.revision,
                local_files_only=local_only,
            )
        )

    try:
        return download(local_only=True)
    except LocalEntryNotFoundError:
        pass
    reason = "offline mode is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            get_session().head(constants.ENDPOINT, timeout=3.0)
            return download(local_only=False)
        except Exception as error:  # noqa: BLE001 - the client's network errors have no common base
            reason = type(error).__name__
    raise PromptError(
        f"{hosted.name}: not in the local cache and it cannot be fetched ({reason}); use "
        "file:PATH.jsonl, or fetch it once where there is a network"
    )
