"""`python -m extproc`."""

from extproc.cli import app

if __name__ == "__main__":
    app()
