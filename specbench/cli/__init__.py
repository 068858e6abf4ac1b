"""The door: commands that parse, call and print. Owns exit codes and messages.

Heavy imports stay inside the commands, so that `specbench --help` answers at once.
"""

from specbench.cli.app import main

__all__ = ["main"]
