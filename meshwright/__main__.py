"""`python -m meshwright`: the command line without an installed script."""

from meshwright.cli.main import app

if __name__ == "__main__":
    app()
