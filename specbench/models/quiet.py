"""Silence around transformers: its logs, warnings and progress bars are not our output."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Within it transformers says only errors and draws no bars; afterwards all is as it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it warns about other people's packages
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled
        from transformers.utils import logging as theirs

        level, had_bars = theirs.get_verbosity(), not are_progress_bars_disabled()
        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
        try:
            yield
        finally:
            theirs.set_verbosity(level)
            if had_bars:
                theirs.enable_progress_bar()


def hush_about_masks() -> None:
    """From now on transformers does not advise to pass a mask where a prompt holds the padding
    piece: nothing here is padded where no mask is passed."""
    logging.getLogger("transformers.modeling_utils").addFilter(_is_no_advice)


def _is_no_advice(line: logging.LogRecord) -> bool:
    return not line.getMessage().startswith("We strongly recommend passing in an `attention_mask`")
