"""`python -m specbench` is `specbench`."""

from specbench.cli import main

main()
