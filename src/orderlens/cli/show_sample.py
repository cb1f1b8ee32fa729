"""``orderlens runs show RUN --sample ID``: one sample drawn in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orderlens.cli.console import print_json, print_text, stdout


def show_sample(
    run: str, sample_id: str, orders: Sequence[str], *, film: Path | None = None, as_json: bool = False
) -> None:
    """Print the traces of a sample below each other, or as JSON what pages show of it; or write a film."""
    from orderlens.files import write_text
    from orderlens.store.reader import open_run
    from orderlens.views import Shown, plain_sample

    view = open_run(run).sample(sample_id, orders=list(orders) or None)
    if as_json and film is None:
        print_json(plain_sample(view))
        return
    traces = tuple(view.trace(name) for name in orders) if orders else view.show().traces
    shown = Shown(view, traces)
    if film is not None:
        written = write_text(film, shown.film())
        print_json({"film": str(written)}) if as_json else print_text(f"film: {written}")
        return
    print_text(shown.text(max(stdout.width, 40)))
    if len(traces) < len(view.traces):
        print_text(f"\n{len(view.traces)} traces in all; name others with --order: {', '.join(view.labels)}")
