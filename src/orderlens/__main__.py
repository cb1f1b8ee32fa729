"""``python -m orderlens`` is the ``orderlens`` command."""

from orderlens.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
