"""``ol.record``: decoders of many kinds, each of which logs its changes itself, against what is recorded."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import RunError, UserInputError
from orderlens.show.views.replay import canvas as replayed

torch = pytest.importorskip("torch")
VOCAB, MASK, EOS = 30, 29, 28


class Net(torch.nn.Module):
    """A small random bidirectional network; ``shown`` offsets the positions of windows."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens, self.places = torch.nn.Embedding(VOCAB, 24), torch.nn.Embedding(256, 24)
        self.layer = torch.nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(24, VOCAB)
        self.eval()

    def forward(self, ids, attention_mask=None, offset=0, **more):
        del attention_mask, more
        places = torch.arange(ids.shape[1]) + offset
        logits = 4 * self.head(self.layer(self.tokens(ids) + self.places(places)))
        logits[..., MASK] = -40.0
        return SimpleNamespace(logits=logits)


class Log:
    """What a decoder does, in its own words: (row, pass, position, event, token, log q)."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def note(self, before, after, logits, number, start=0, rows=None) -> None:
        log_p = logits.detach().float().log_softmax(-1)
        for row, place in (before != after).nonzero().tolist():
            old, new = int(before[row, place]), int(after[row, place])
            event = "remask" if new == MASK else "reveal" if old == MASK else "edit"
            logq = None if new == MASK else float(log_p[row, place, new])
            name = row if rows is None else rows[row]
            self.events.append((name, number, place + start, event, None if new == MASK else new, logq))

    def check(self, run: ol.Run, names: list[str]) -> None:
        """Compare with both tables of a run."""
        found = [
            (row["sample_id"], row["forward"], row["position"], "reveal", row["token_id"], row["logq"])
            for row in run.reveals().to_arrow().to_pylist()
        ]
        if "revisions" in run.tables:
            rows = run.table("revisions").to_arrow().to_pylist()
            keys = ("sample_id", "forward", "position", "event", "new_token", "logq")
            found += [tuple(row[key] for key in keys) for row in rows]
        wanted = sorted((names[row], *rest) for row, *rest in self.events)
        assert [row[:5] for row in sorted(found, key=lambda r: r[:4])] == [row[:5] for row in wanted]
        for mine, theirs in zip(sorted(found, key=lambda r: r[:4]), wanted, strict=True):
            assert mine[5] == (theirs[5] if theirs[5] is None else pytest.approx(theirs[5], abs=1e-5))


def prompts(n: int = 2, length: int = 4, seed: int = 1):
    return torch.randint(0, 20, (n, length), generator=torch.Generator().manual_seed(seed))


def canvas_of(prompt, length: int):
    return torch.cat([prompt, torch.full((len(prompt), length), MASK)], 1)


def fill(x, logits, count: int, low: int = 0, high: int | None = None):
    """Return the canvas with the ``count`` most confident masked positions of each row filled."""
    out = x.clone()
    p, token = logits.detach().softmax(-1).max(-1)
    p = torch.where(x == MASK, p, -1.0)
    p[:, :low] = -1
    if high is not None:
        p[:, high:] = -1
    for row in range(len(x)):
        best = p[row].topk(min(count, x.shape[1])).indices
        best = best[p[row, best] >= 0]
        out[row, best] = token[row, best]
    return out


def greedy(net, prompt, length: int = 12, count: int = 2, log: Log | None = None, in_place: bool = True):
    x, number = canvas_of(prompt, length), 0
    while (x == MASK).any():
        logits = net(x).logits
        raw = logits.clone()
        after = fill(x, logits, count)
        logits.fill_(torch.nan)  # decoders may change logits in place
        if log is not None:
            log.note(x, after, raw, number)
        if in_place:
            x.copy_(after)
        else:
            x = after
        number += 1
    return x


@pytest.mark.parametrize("count", [1, 3])
def test_every_reveal_has_the_log_q_of_its_pass(count: int) -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        x = greedy(net, prompts(), count=count, log=log)
    log.check(rec.run, ["text-0000-0", "text-0000-1"])
    outputs = rec.run.outputs().to_arrow().to_pylist()
    assert [row["token_ids"] for row in outputs] == x[:, 4:].tolist()
    assert [row["prompt_ids"] for row in outputs] == x[:, :4].tolist()
    table = rec.run.reveals().to_pandas()
    assert table["is_argmax"].all()
    assert (table["logq"] == table["max_logprob"]).all()
    assert (table["second_logprob"] <= table["max_logprob"]).all()
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [-(-12 // count)] * 2
    assert "outputs" in rec.run.tables
    assert rec.run.spec["kind"] == "record"


def test_entropy_and_runner_up_are_those_of_the_row() -> None:
    net = Net()
    with ol.record(net, mask_id=MASK) as rec:
        greedy(net, prompts(1), length=1)
    row = rec.run.reveals().to_arrow().to_pylist()[0]
    log_p = net(canvas_of(prompts(1), 1)).logits[0, 4].detach().log_softmax(-1)
    assert row["entropy"] == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=1e-5)
    assert [row["max_logprob"], row["second_logprob"]] == pytest.approx(
        log_p.topk(2).values.tolist(), abs=1e-5
    )


def test_the_last_pass_needs_the_final_canvas_or_writing_in_place() -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        greedy(net, prompts(), in_place=False)
    assert rec.run.reveals().to_arrow().num_rows == 2 * 10
    assert any("4 positions still masked" in note for note in rec.run.spec["recorded"]["notes"])
    with ol.record(net, mask_id=MASK) as rec:
        rec.finish((greedy(net, prompts(), in_place=False, log=log), 6))
    log.check(rec.run, ["text-0000-0", "text-0000-1"])
    assert not any("still masked" in note for note in rec.run.spec["recorded"]["notes"])


def test_tokens_that_the_network_excludes_are_left_out_with_a_note() -> None:
    class Excluding(Net):
        def forward(self, ids, attention_mask=None, offset=0, **more):
            found = super().forward(ids.clamp(max=MASK))
            found.logits[..., 0] = -torch.inf
            return found

    net, x = Excluding(), canvas_of(prompts(1), 4)
    with ol.record(net, mask_id=MASK) as rec:
        net(x)
        x[0, 4], x[0, 5], x[0, 6] = 5, 0, 0
        net(x)
        x[0, 5], x[0, 6] = 7, MASK  # an edit and a remask of tokens that were left out
        net(x)
        x[0, 6], x[0, 7] = 8, VOCAB  # padding with an id that has no row
        rec.finish(x)
    found = rec.run.reveals().to_arrow().to_pylist()
    assert [(row["forward"], row["token_id"]) for row in found] == [(0, 5), (1, 7), (2, 8)]
    assert all(math.isfinite(row["logq"]) for row in found)
    assert "revisions" not in rec.run.tables
    assert any(note.startswith("3 tokens left out") for note in rec.run.spec["recorded"]["notes"])


@pytest.mark.parametrize("kind", ["int32", "bfloat16", "inference", "in place and inference", "autocast"])
def test_other_types_and_modes(kind: str) -> None:
    net, log = Net(), Log()
    if kind == "bfloat16":
        net = net.bfloat16()
    prompt = prompts().to(torch.int32) if kind == "int32" else prompts()
    with ol.record(net, mask_id=MASK) as rec:
        with torch.inference_mode("inference" in kind), torch.autocast("cpu", enabled=kind == "autocast"):
            final = greedy(net, prompt, log=log, in_place="place" in kind)
        if "place" not in kind:
            rec.finish(final.tolist())
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def revising(net, prompt, log: Log, passes: int = 9):
    """Fill two, mask the least confident again in every third pass, edit one in every fourth."""
    x = canvas_of(prompt, 20)
    for number in range(passes):
        logits = net(x).logits.detach()
        after = fill(x, logits, 2 if number < passes - 1 else 20)
        for row in range(len(x)):
            held = ((x[row] != MASK) & (torch.arange(24) >= 4)).nonzero()[:, 0]
            if number % 3 == 2 and len(held):
                after[row, held[0]] = MASK
            if number % 4 == 3 and len(held) > 1:
                after[row, held[-1]] = (int(x[row, held[-1]]) + 1) % 20
        log.note(x, after, logits, number)
        x = after
    return x


def test_edits_and_remasks_are_revisions(tmp_path: Path) -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK, out=tmp_path / "run", order="mine") as rec:
        rec.sample("a")
        rec.sample("b")
        x = revising(net, prompts(), log)
        rec.finish(x)
    assert {event for *_, event, _, _ in log.events} == {"reveal", "edit", "remask"}
    log.check(rec.run, ["a", "b"])
    for row, name in enumerate("ab"):
        cells = replayed(rec.run.sample(name).traces[0], 8)
        left = {cell.position: cell.token_id for cell in cells}
        assert left == {place: int(x[row, place]) for place in range(4, 24) if x[row, place] != MASK}
    assert ol.open_run(tmp_path / "run").is_complete
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [9, 9]


def test_everything_reads_a_recorded_run(tmp_path: Path) -> None:
    net = Net()
    tokenizer = SimpleNamespace(
        encode=lambda text: [ord(c) - 97 for c in text],
        decode=lambda ids: "".join(chr(97 + i) for i in ids),
        eos_token_id=EOS,
    )
    out = str(tmp_path / "run")
    with ol.record(net, mask_id=MASK, out=out, tokenizer=tokenizer, order="max-prob+top=2") as rec:
        rec.sample("a", target="x", correct=True)
        rec.sample("b", prompt="stated")
        x = greedy(net, prompts())
    rows = rec.run.outputs().to_arrow().to_pylist()
    assert rows[0]["prompt_text"] == tokenizer.decode(x[0, :4].tolist())
    assert rows[1]["prompt_text"] == "stated"
    assert rows[0]["text"] == tokenizer.decode(x[0, 4:].tolist()).split(chr(97 + EOS))[0]
    assert rec.run.table("verdicts").to_arrow()["correct"].to_pylist() == [True]
    assert rec.run.spec["recorded"]["targets"] == {"a": "x"}
    film, page = str(tmp_path / "a.svg"), str(tmp_path / "r.html")
    assert main(["runs", "show", out, "--sample", "a", "--film", film]) == 0
    assert main(["runs", "verify", out]) == 0
    assert main(["analyze", out, "--table", "generation"]) == 0
    assert main(["report", out, "--out", page]) == 0
    with pytest.raises(RunError, match="already holds a run"), ol.record(net, mask_id=MASK, out=out):
        raise AssertionError


def test_shifted_logits() -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK, shift=True) as rec:
        x = canvas_of(prompts(), 8)
        for number in range(4):
            logits = net(x).logits.detach()
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
            after = fill(x, logits, 2)
            log.note(x, after, logits, number)
            x = rec.on_step(number, after, logits)
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def test_decodes_are_told_apart() -> None:
    net = Net()
    with ol.record(net, mask_id=MASK) as rec:
        for prompt in (prompts(), prompts(), prompts(1), prompts(2, 6), prompts(2, 6, seed=5)):
            greedy(net, prompt)
        rec.sample("named")
        greedy(net, prompts(1))
    counts = rec.run.samples().to_arrow().select(["sample_id", "n"]).to_pylist()
    names = ["named", *(f"text-000{i}-{row}" for i in (0, 1, 2, 3, 4) for row in range(1 if i == 2 else 2))]
    assert [row["sample_id"] for row in counts] == sorted(names)
    assert {row["n"] for row in counts} == {12}


def test_short_decodes_without_a_prompt_are_told_apart() -> None:
    net = Net()
    with ol.record(net, mask_id=MASK) as rec:
        for _ in range(2):
            x = torch.full((1, 4), MASK)
            for low in (0, 2):
                x[:, low : low + 2] = net(x).logits.detach().argmax(-1)[:, low : low + 2]
    assert rec.run.samples().to_arrow()["n"].to_pylist() == [4, 4]


def test_texts_may_leave_the_batch() -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        x = canvas_of(prompts(3), 6)
        x[0, 6:], x[2, 8:] = 3, 4  # given text: these end earlier
        rows, final = [0, 1, 2], x.clone()
        for number in range(6):
            logits = net(x).logits.detach()
            after = fill(x, logits, 1)
            log.note(x, after, logits, number, rows=rows)
            final[rows] = after
            going = (after == MASK).any(1)
            rows, x = [row for row, on in zip(rows, going.tolist(), strict=True) if on], after[going]
            if not rows:
                break
        rec.finish(final)
    assert len(log.events) == 2 + 6 + 4
    log.check(rec.run, [f"text-0000-{row}" for row in range(3)])
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [2, 6, 4]


class Cache:
    """A cache that knows its length, as those of transformers do."""

    def __init__(self) -> None:
        self.length = 0

    def get_seq_length(self) -> int:
        return self.length


def block_loop(net, prompt, log: Log, how: str, length: int = 12, block: int = 4):
    """SDAR's loop: fill the cache with the prompt, decode a block in its window, fill the cache with it."""
    x, cache, number = canvas_of(prompt, length), Cache(), 0

    def call(low, high, store):
        more: dict[str, Any] = {"past_key_values": cache}
        if how == "position_ids":
            more["position_ids"] = torch.arange(low, high)[None]
        if how == "cache_position":
            more["cache_position"] = torch.arange(low, high)
        if how == "hidden":
            more = {"memory": cache}
        found = net(x[:, low:high].clone(), offset=low, **more).logits
        cache.length = high if store else cache.length
        return found.detach()

    call(0, prompt.shape[1], store=True)
    for low in range(prompt.shape[1], x.shape[1], block):
        part = slice(low, low + block)
        while (x[:, part] == MASK).any():
            logits = call(low, low + block, store=False)
            after = fill(x[:, part], logits, 2)
            log.note(x[:, part], after, logits, number, start=low)
            x[:, part] = after
            number += 1
        call(low, low + block, store=True)
    return x


@pytest.mark.parametrize("how", ["position_ids", "cache_position", "length"])
def test_cached_windows_and_calls_without_masks(how: str) -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        x = block_loop(net, prompts(), log, how)
    log.check(rec.run, ["text-0000-0", "text-0000-1"])
    assert [row["token_ids"] for row in rec.run.outputs().to_arrow().to_pylist()] == x[:, 4:].tolist()
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [6, 6]


def test_the_same_prompt_again_in_windows_is_another_decode() -> None:
    net = Net()
    with ol.record(net, mask_id=MASK) as rec:
        for _ in range(2):
            block_loop(net, prompts(), Log(), "length")
    assert rec.run.samples().to_arrow()["n"].to_pylist() == [12] * 4
    assert "revisions" not in rec.run.tables


def fast_dllm(net, prompt, log: Log, dual: bool, length: int = 12, block: int = 4):
    """Fast-dLLM's loops: a pass over the canvas, then passes over the block, or from it to the end."""
    x, number = canvas_of(prompt, length), 0
    for low in range(prompt.shape[1], x.shape[1], block):
        high = low + block
        logits = net(x, use_cache=True).logits.detach()
        after = fill(x, logits, 1, low, high)
        log.note(x, after, logits, number)
        x.copy_(after)
        number += 1
        mark = torch.zeros_like(x, dtype=torch.bool)
        mark[:, low:high] = True
        stop = high if dual else x.shape[1]
        cached = x.shape[1] if dual else low
        keys = torch.zeros(1, 1, cached, 1)
        more = {"replace_position": mark} if dual else {}
        while (x[:, low:high] == MASK).any():
            part = x[:, low:stop]
            logits = net(part, past_key_values=[(keys, keys)], offset=low, use_cache=True, **more).logits
            after = fill(part, logits, 1, 0, block)
            log.note(part, after, logits, number, start=low)
            part.copy_(after)
            number += 1
    return x


@pytest.mark.parametrize("dual", [False, True])
def test_prefix_and_dual_cache(dual: bool) -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        x = fast_dllm(net, prompts(1), log, dual)
    log.check(rec.run, ["text-0000-0"])
    assert rec.run.outputs().to_arrow()["token_ids"].to_pylist() == x[:, 4:].tolist()


def test_windows_that_tell_nothing_are_refused_unless_the_caller_tells() -> None:
    net, log = Net(), Log()

    def windows():
        net(canvas_of(prompts(), 12))
        block_loop(net, prompts(), Log(), "hidden")

    with pytest.raises(UserInputError, match="window=lambda"), ol.record(net, mask_id=MASK):
        windows()
    with (
        pytest.raises(UserInputError, match="with a cache and a window of 4"),
        ol.record(net, mask_id=MASK) as rec,
    ):
        net(prompts(), past_key_values=SimpleNamespace(rows=3))
    with ol.record(net, mask_id=MASK, window=lambda args, kwargs: kwargs["offset"]) as rec:
        block_loop(net, prompts(), log, "hidden")
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def test_a_canvas_may_grow() -> None:
    net, log, number = Net(), Log(), 0
    with ol.record(net, mask_id=MASK) as rec:
        x = prompts()
        for _ in range(3):
            x = canvas_of(x, 4)
            while (x == MASK).any():
                logits = net(x).logits.detach()
                after = fill(x, logits, 2)
                log.note(x, after, logits, number)
                x, number = after, number + 1
        rec.finish(x)
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def guided(net, prompt, scale: float, log: Log, length: int = 6):
    x, given = canvas_of(prompt, length), canvas_of(prompt, length) != MASK
    for number in range(length // 2):
        free = torch.where(given, MASK, x)
        logits, other = net(torch.cat([x, free])).logits.detach().chunk(2)
        logits = other + (scale + 1) * (logits - other)
        after = fill(x, logits, 2)
        log.note(x, after, logits, number)
        x = after
    return x


def test_guidance_is_refused_or_recorded_as_the_mixture() -> None:
    net, log = Net(), Log()
    with pytest.raises(UserInputError, match="guidance=SCALE"), ol.record(net, mask_id=MASK):
        guided(net, prompts(), 0.7, Log())
    with ol.record(net, mask_id=MASK, guidance=0.7) as rec:
        rec.finish(guided(net, prompts(), 0.7, log, length=14))
    log.check(rec.run, ["text-0000-0", "text-0000-1"])
    assert rec.run.spec["recorded"]["guidance"] == 0.7


def test_guidance_may_have_the_masked_prompt_first() -> None:
    net, log = Net(), Log()

    def swapped(both: Any) -> Any:
        found = net(torch.cat(both.chunk(2)[::-1])).logits
        return SimpleNamespace(logits=torch.cat(found.chunk(2)[::-1]))

    with ol.record(net, mask_id=MASK, guidance=1.5) as rec:
        rec.finish(guided(swapped, prompts(), 1.5, log))
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def test_a_prompt_that_begins_another_is_not_guidance() -> None:
    net = Net()
    with ol.record(net, mask_id=MASK) as rec:
        x = canvas_of(prompts(1).repeat(2, 1), 6)
        x[1, 4] = 3
        while (x == MASK).any():
            x.copy_(fill(x, net(x).logits.detach(), 1))
    assert rec.run.samples().to_arrow()["n"].to_pylist() == [6, 5]


def test_guidance_in_two_calls_is_refused_or_recorded_as_the_mixture() -> None:
    net, log = Net(), Log()

    def twice(both: Any) -> Any:
        first, second = both.chunk(2)
        return SimpleNamespace(logits=torch.cat([net(first).logits, net(second).logits]))

    with ol.record(net, mask_id=MASK, guidance=1.5) as rec:
        rec.finish(guided(twice, prompts(), 1.5, log))
    log.check(rec.run, ["text-0000-0", "text-0000-1"])
    with pytest.raises(UserInputError, match="guidance"), ol.record(net, mask_id=MASK):
        guided(twice, prompts(), 1.5, Log())

    def masked_first(both: Any) -> Any:
        first, second = both.chunk(2)
        free = net(second).logits
        return SimpleNamespace(logits=torch.cat([net(first).logits, free]))

    words = "with the prompt first"
    with pytest.raises(UserInputError, match=words), ol.record(net, mask_id=MASK, guidance=1.5):
        guided(masked_first, prompts(), 1.5, Log())


def test_equal_prompts_that_part_are_not_guidance() -> None:
    net = Net()
    with ol.record(net, mask_id=MASK) as rec:
        x = canvas_of(prompts(1).repeat(2, 1), 6)
        while (x == MASK).any():
            token = net(x).logits.detach().argmax(-1)
            for row, count in enumerate((2, 1)):  # the second text is the first with more masks
                masked = (x[row] == MASK).nonzero()[:count, 0]
                x[row, masked] = token[0, masked]
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [3, 6]


def test_windows_of_texts_that_part_are_not_guidance() -> None:
    net, cache = Net(), Cache()
    with ol.record(net, mask_id=MASK) as rec:
        x = canvas_of(prompts(1).repeat(2, 1), 6)
        net(x[:, :4].clone(), past_key_values=cache)
        cache.length = 4
        while (x == MASK).any():
            token = net(x[:, 4:].clone(), offset=4, past_key_values=cache).logits.detach().argmax(-1)
            for row, count in enumerate((2, 1)):
                masked = (x[row, 4:] == MASK).nonzero()[:count, 0]
                x[row, 4 + masked] = token[0, masked]
        rec.finish(x)
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [3, 6]


def test_a_time_before_the_ids_is_not_taken_for_them() -> None:
    net, log = Net(), Log()
    with ol.record(lambda time, ids: net(ids), mask_id=MASK) as rec:

        def call(ids: Any) -> Any:
            return rec.network(torch.arange(len(ids)), ids)

        greedy(call, prompts(), log=log)
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def test_calls_with_candidates_are_left_out() -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        x = canvas_of(prompts(1), 6)
        for number in range(6):
            logits = net(x).logits.detach()
            after = fill(x, logits, 1)
            net(torch.cat([after, fill(x, logits, 2), fill(x, -logits, 1)]))
            log.note(x, after, logits, number)
            x = after
        rec.finish(x)
    log.check(rec.run, ["text-0000-0"])
    assert "6 calls with more rows than texts" in rec.run.spec["recorded"]["notes"][0]


def test_decoders_may_alternate() -> None:
    net, logs = Net(), [Log(), Log()]
    with ol.record(net, mask_id=MASK) as rec:
        texts = [canvas_of(prompts(1, seed=seed), 6) for seed in (1, 2)]
        for number in range(3):
            for log, x in zip(logs, texts, strict=True):
                logits = net(x).logits.detach()
                after = fill(x, logits, 2)
                log.note(x, after, logits, number)
                x.copy_(after)
    logs[0].events += [(1, *event[1:]) for event in logs[1].events]
    logs[0].check(rec.run, ["text-0000-0", "text-0001-0"])


def test_a_missing_or_needless_shift_is_reported() -> None:
    net = Net()

    def decode(shift: bool) -> None:
        x = canvas_of(prompts(), 12)
        for _ in range(6):
            logits = net(x).logits.detach()
            x = fill(x, torch.cat([logits[:, :1], logits[:, :-1]], 1) if shift else logits, 2)
        rec.finish(x)

    for told in (False, True):
        for actual in (False, True):
            with ol.record(net, mask_id=MASK, shift=told) as rec:
                decode(actual)
            found = [note for note in rec.run.spec["recorded"]["notes"] if "did you mean" in note]
            assert [note.endswith(f"shift={actual}?") for note in found] == [True] * (told != actual)


def test_the_final_canvas_may_lack_the_prompt() -> None:
    net, log = Net(), Log()
    with ol.record(net, mask_id=MASK) as rec:
        rec.finish(greedy(net, prompts(), log=log, in_place=False)[:, 4:])
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


class OnDevice(torch.Tensor):
    """A tensor that the host may not read while ``strict``; its copy on the host is an ordinary tensor."""

    strict = False
    waits = frozenset({"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__"})

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        by_mask = func is torch.Tensor.__getitem__ and any(
            isinstance(index, OnDevice) and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        assert not (OnDevice.strict and (func.__name__ in cls.waits or by_mask)), func.__name__
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found.as_subclass(torch.Tensor) if func is torch.Tensor.to and "cpu" in args else found


@pytest.mark.parametrize("shift", [False, True])
def test_no_pass_waits_for_the_device(shift: bool) -> None:
    net, log, number = Net(), Log(), 0
    with ol.record(
        lambda ids: net(ids).logits.detach().as_subclass(OnDevice), mask_id=MASK, shift=shift
    ) as rec:
        x = canvas_of(prompts(), 12)
        while (x == MASK).any():
            OnDevice.strict = True
            found = rec.network(x.clone().as_subclass(OnDevice))
            OnDevice.strict = False
            logits = found.as_subclass(torch.Tensor)
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1) if shift else logits
            after = fill(x, logits, 2)
            log.note(x, after, logits, number)
            x, number = after, number + 1
        rec.finish(x)
    log.check(rec.run, ["text-0000-0", "text-0000-1"])


def test_a_crash_keeps_what_was_recorded_and_removes_the_hooks(tmp_path: Path) -> None:
    net = Net()

    def breaks(x):
        for number in range(9):
            after = fill(x, net(x).logits, 2)
            if number == 3:
                raise ValueError("out of luck")
            x.copy_(after)

    with (
        pytest.raises(ValueError, match="out of luck"),
        ol.record(net, mask_id=MASK, out=tmp_path / "r") as rec,
    ):
        breaks(canvas_of(prompts(), 12))
    assert rec.run.reveals().to_arrow().num_rows == 2 * 6
    assert "ValueError: out of luck" in rec.run.spec["recorded"]["notes"][0]
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    with pytest.raises(ValueError, match="early"), ol.record(net, mask_id=MASK):
        raise ValueError("early")
    with ol.record(net, mask_id=MASK) as rec:
        greedy(net, prompts())
    assert rec.run.reveals().to_arrow().num_rows == 24


def test_plain_callables_are_observed() -> None:
    net, log = Net(), Log()

    def network(ids):
        return net(ids).logits

    def decoder(f, x, number=0):
        while (x == MASK).any():
            logits = f(x)
            after = fill(x, logits, 2)
            log.note(x, after, logits, number)
            x.copy_(after)
            number += 1

    with ol.record(network, mask_id=MASK) as rec:
        decoder(rec.network, canvas_of(prompts(), 6))
    log.check(rec.run, ["text-0000-0", "text-0000-1"])
    assert rec.network(prompts()).shape == (2, 4, VOCAB)


def test_misuse_is_refused() -> None:
    net = Net()
    with pytest.raises(UserInputError, match="module or a callable"):
        ol.record(3, mask_id=MASK)
    with pytest.raises(UserInputError, match="mask_id must be"):
        ol.record(net, mask_id=-1)
    with (
        pytest.raises(UserInputError, match="already being recorded"),
        ol.record(net, mask_id=MASK),
        ol.record(net, mask_id=MASK),
    ):
        raise AssertionError
    with pytest.raises(UserInputError, match="nothing was recorded"), ol.record(net, mask_id=MASK):
        net(prompts())
    rec = ol.record(net, mask_id=MASK)
    for name in "abc":
        rec.sample(name)
    with pytest.raises(UserInputError, match="3 samples were named for a batch of 2"), rec:
        greedy(net, prompts())
    rec = ol.record(net, mask_id=MASK)
    with pytest.raises(UserInputError, match="number of texts differs, or 29 is not the id of the mask"), rec:
        rec.finish(greedy(net, prompts())[:1])
    with ol.record(net, mask_id=MASK) as rec:
        greedy(net, prompts())
        with pytest.raises(UserInputError, match="must be token ids"):
            rec.finish([[1, 2], [3]])
    with pytest.raises(RunError, match="after the record block"), ol.record(net, mask_id=MASK) as rec:
        assert rec.run
    with (
        pytest.raises(UserInputError, match="without token ids"),
        ol.record(torch.nn.Linear(3, 3), mask_id=1) as rec,
    ):
        rec.network(torch.zeros(1, 3))


def test_passes_can_be_added_where_hooks_do_not_fire() -> None:
    """As a plug-in of a serving engine does: blocks of several requests, flattened, with their positions."""
    net, log, block = Net(), Log(), 4
    with ol.record(None, mask_id=MASK, order="low-confidence") as rec:
        rec.sample("r1", prompt="asked")
        for start, numbers in ((8, (0, 1)), (12, (2, 3))):
            flat = torch.full((2 * block,), MASK)
            for number in numbers:
                before = flat.view(2, block).clone()
                logits = net(before, offset=start).logits.detach()
                flat[:] = fill(before, logits, 2).view(-1)
                log.note(before, flat.view(2, block), logits, number, start=start)
                for row, name in enumerate(("r0", "r1")):
                    part = slice(row * block, (row + 1) * block)
                    rec.add_pass(name, before[row], flat[part], logits.view(-1, VOCAB)[part], start=start)
    log.check(rec.run, ["r0", "r1"])
    outputs = rec.run.outputs().to_arrow()
    assert outputs["prompt_text"].to_pylist() == [None, "asked"]
    assert outputs["n_requested"].to_pylist() == [8, 8]
