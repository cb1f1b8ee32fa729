"""Fixtures shared by the whole suite: small models and samples, made once."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if importlib.util.find_spec("hypothesis"):  # not in the minimal environment
    from hypothesis import HealthCheck, settings

    # A change must not fail for a case that has nothing to do with it, nor because the machine is busy;
    # `search` looks for new cases.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("repeatable", patient, derandomize=True)
    settings.register_profile("search", patient, derandomize=False)
    settings.load_profile(os.environ.get("ORDERLENS_PROPERTIES", "repeatable"))

from orderlens.common.rng import keyed_generator
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.texts.samples import EncodedSample

TOGETHER = ("tests/browser/", "tests/studies/replicate/")
"""Folders whose files share a session fixture that costs more than a file of tests: one process each."""

LONGEST = (
    "tests/runs/",
    "tests/studies/replicate/",
    "tests/contracts/test_every_model.py",
    "tests/browser/",
    "tests/docs/test_readme.py",
    "tests/docs/test_contributing.py",
    "tests/docs/test_site.py",
    "tests/store/test_faults.py",
    "tests/store/test_remote.py",
    "tests/recipes/",
)
"""What must not be begun last, when the other processes have nothing left to do."""


FOREIGN = (
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    *("ORDERLENS_CACHE", "ORDERLENS_GPT2"),
    *("RAY_ADDRESS", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_CONFIG_FILE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
"""What a terminal, a cluster, a network or a user's own settings say must not decide a test."""


def pytest_configure() -> None:
    """Forget them, for the processes that tests start too; a terminal is one that can do everything.

    Tests end processes, never the machine, so nothing waits until what is written has reached the disk.
    """
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm-256color"
    os.fsync = lambda _: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Spare the collector what stays for good, a million objects of libraries and tests."""
    gc.collect()
    gc.freeze()


def group_of(nodeid: str) -> str:
    """Return the name of the tests that run in the same process as this one: those of its file, at least."""
    return next(filter(nodeid.startswith, TOGETHER), nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole groups, in the order of collection (xdist's own groups do nothing with pytest 9.2)."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def random_samples(seed: int, lengths: Sequence[tuple[int, int]], low: int, high: int) -> list[EncodedSample]:
    """Samples of random ids in [low, high) with the given (prompt, target) lengths."""
    generator = keyed_generator(seed, "test-samples")
    return [
        EncodedSample(f"s{i}", generator.integers(low, high, prompt), generator.integers(low, high, target))
        for i, (prompt, target) in enumerate(lengths)
    ]


@pytest.fixture(scope="session")
def hmm() -> HiddenMarkovModel:
    """The exact control on blocks of 8."""
    return HiddenMarkovModel(block_size=8)


@pytest.fixture(scope="session")
def mixed_samples(hmm: HiddenMarkovModel) -> list[EncodedSample]:
    """Prompts and targets of many lengths, an empty prompt included; no EOS."""
    lengths = [(0, 5), (3, 17), (8, 8), (13, 30), (20, 1)]
    return random_samples(0, lengths, 0, hmm.vocab_size - 2)


@pytest.fixture(scope="session")
def make_transformer():
    """Builds small random-weight transformers; the weights are scaled up so that conditionals are peaked."""
    pytest.importorskip("torch")
    from orderlens.testing import small_model

    return small_model


@pytest.fixture(scope="session")
def nats_close():
    """Compare arrays of log-probabilities to an absolute tolerance."""

    def close(left: Sequence[float], right: Sequence[float], tolerance: float) -> bool:
        return bool(np.allclose(left, right, rtol=0, atol=tolerance))

    return close


def _module(name: str, place: str) -> ModuleType:
    """Import a file of helpers below ``tests``."""
    description = importlib.util.spec_from_file_location(name, Path(__file__).parent / place)
    assert description is not None
    assert description.loader is not None
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def worker() -> ModuleType:
    """The module ``store/worker.py``, which computes a tiny run without a model."""
    return _module("store_worker", "store/worker.py")


@pytest.fixture(scope="session")
def golden() -> ModuleType:
    """The module ``golden/runs.py``: small runs of the exact control, and stored numbers."""
    return _module("golden_runs", "golden/runs.py")


@pytest.fixture(scope="session")
def golden_studies(golden: ModuleType) -> dict[str | None, Any]:
    """Studies by kind of traces; not to be changed."""
    return golden.studies()


@pytest.fixture(scope="session")
def quick_figures() -> Callable[[], AbstractContextManager[None]]:
    """Return a context that draws figures as pages need them, coarse and with their parts where they fall.

    How they look and the other formats are tested in tests/figures.
    """

    @contextmanager
    def quick() -> Iterator[None]:
        from orderlens.figures.style import RC

        coarse = {"figure.constrained_layout.use": False, "savefig.dpi": 60}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orderlens.figures.catalogue.FORMATS", ("svg", "png"))
            for name, value in coarse.items():
                patch.setitem(RC, name, value)
            yield

    return quick


class HtmlReader(HTMLParser):
    """Collects tags, attributes, text and scripts of a page, and checks that tags close."""

    VOID = ("meta", "img", "input", "link", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text, self.open, self.raw = [], [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.raw if self.open and self.open[-1] in ("script", "style") else self.text).append(data)


@pytest.fixture(scope="session")
def read_html():
    """Return a function that reads a page strictly."""
    return HtmlReader


EVIL = "<script>alert(1)</script>\"&'<img src=x onerror=y>\u202e\x00\x1b[31m</style>👩‍👩‍👧" + "w" * 300
"""Markup, bidirectional and terminal controls, a null byte, an emoji of several parts, a very long word."""
_ORDERS = ("forced-ar", "random", "max-prob", "oracle-max-q")


def _made_run(n_samples=6, n=16, evil=False, scored=True):
    """Return a run in memory; with ``evil`` its ids, texts, tokens and model are hostile."""
    from orderlens.testing import make_run, random_trace

    rng = np.random.default_rng(0)
    bad = EVIL if evil else ""
    ids = [f"s{place}{bad}" for place in range(n_samples)]
    keys, traces = [], []
    for name in ids if scored else ():
        traces += [random_trace(rng, name, order, n, block_size=8) for order in _ORDERS]
        keys += [({"sample_id": name, "order": order}, None) for order in _ORDERS]
    for place, name in enumerate(ids):
        for order, together in (("max-prob", 1), ("max-prob+top=4", 4)):
            more = {"temperature": 0.0, "block_size": 8}
            tokens = np.r_[np.arange(2, n), 0, 0]
            forward = np.arange(n) // together
            traces.append(random_trace(rng, name, order, n, tokens=tokens, forward=forward, **more))
            keys.append(({"sample_id": name, "order": order, "temperature": 0.0}, place))
    outputs = [key | {"text": f"answer {bad}", "prompt_text": f"ask {bad}"} for key, _ in keys]
    verdicts = [
        key | {"correct": place % 2 == 0, "reason": f"because {bad}", "grader": "g"}
        for key, place in keys
        if place is not None
    ]
    return make_run(
        traces,
        spec={"kind": "evaluate", "model": {"name": f"m{bad}"}, "max_new_tokens": n, "data": {"tasks": {}}},
        outputs=outputs,
        tokens=[{"token_id": token, "piece": f" t{token}{bad}"} for token in range(n)],
        verdicts=verdicts,
    )


@pytest.fixture(scope="session")
def made_run():
    """Return a function that makes a small run: scored and generated text, verdicts, policies, tokens."""
    return _made_run
