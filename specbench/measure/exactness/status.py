"""The ends of a check. Only the first is a proof."""

from __future__ import annotations

# Decoding is exact, as far as the check can see, and a wrong decoder was caught.
EXACT = "exact"
# Something that no rounding explains.
WRONG = "wrong"
# Nothing wrong was seen, but a wrong decoder would have passed as well.
UNDERPOWERED = "underpowered"
# A model gave no law to follow.
NOT_CHECKED = "not checked"
