"""`python -m fedpeer`: the command line, for when the script `fedpeer` is not on the path."""

from fedpeer.cli.main import main

if __name__ == "__main__":
    main()
