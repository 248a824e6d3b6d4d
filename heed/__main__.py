"""`python -m heed` is `heed`."""

from heed.cli.main import main

main()
