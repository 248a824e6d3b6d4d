"""`python -m heed` is `heed`."""

from heed.cli import main

main()
