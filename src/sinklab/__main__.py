"""`python -m sinklab` is the command `sinklab`."""

from sinklab.cli import main

if __name__ == "__main__":
    main()
