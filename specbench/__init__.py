"""Measure what speculative decoding gives on your models, your prompts and your machine."""

__version__ = "0.1.0"
