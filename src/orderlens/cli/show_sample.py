"""``orderlens runs show RUN --sample ID``: one sample drawn in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from orderlens.cli.console import print_json, print_text, stdout


def show_sample(run: str, sample_id: str, orders: Sequence[str], *, as_json: bool) -> None:
    """Print the traces of a sample below each other, or as JSON what pages show of it."""
    from orderlens.store.reader import open_run
    from orderlens.views import Shown, plain_sample

    view = open_run(run).sample(sample_id, orders=list(orders) or None)
    if as_json:
        print_json(plain_sample(view))
        return
    traces = tuple(view.trace(name) for name in orders) if orders else view.show().traces
    print_text(Shown(view, traces).text(max(stdout.width, 40)))
    if len(traces) < len(view.traces):
        print_text(f"\n{len(view.traces)} traces in all; name others with --order: {', '.join(view.labels)}")
