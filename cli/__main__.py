"""`python -m cli` is `det`."""

from cli.main import run

if __name__ == "__main__":
    run()
