"""`python -m gpuscope`."""

from gpuscope.cli import main

if __name__ == "__main__":
    main()
