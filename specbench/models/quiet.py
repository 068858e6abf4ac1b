"""Silence around transformers: its logs, warnings and progress bars are not our output."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Within it transformers says only errors and draws no bars; afterwards all is as it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it warns about other people's packages
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled
        from transformers.utils import logging

        level, had_bars = logging.get_verbosity(), not are_progress_bars_disabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if had_bars:
                logging.enable_progress_bar()
