"""The canvas of one recorded decode: what changed between two calls, and what the earlier call says about it.

What differs between the input of a call and that of the next was decided by the earlier call, and its log q
is in the logits of that call. Only logits of positions that may change are kept, until the next call that
shows these positions. Does not depend on files.

Shape letters: N texts, W positions of a call, L positions of the canvas, K kept rows, C changes, V ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNSEEN = -1
"""Token at positions that no call has shown."""


@dataclass(slots=True)
class Call:
    """A call whose decisions are not all known yet.

    Attributes:
        start: position of its window.
        stop: position after its window.
        texts: the texts of its rows.
        row_NW: number of the kept row at each position of all texts of the decode, −1 where none is kept.
        logits_KV: the kept rows.
        number: pass number; None for a call without a mask until it turns out to change something.
        source: the ids tensor of the caller; decoders that write in place leave the result there.
    """

    start: int
    stop: int
    texts: Tensor
    row_NW: Tensor
    logits_KV: Tensor
    number: int | None
    source: Tensor


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that one call decided: tensors [C] on the network's device."""

    forward: int
    text_C: Tensor
    position_C: Tensor
    old_C: Tensor
    new_C: Tensor
    stats: dict[str, Tensor]


class RecordedCanvas:
    """The tokens of the texts of one decode.

    Attributes:
        tokens_NL: what the last call showed; ``UNSEEN`` where no call did.
        given_NL: positions that held a token when they were first shown.
        changes: everything that was decided so far.
        last_N: number of the last pass in which each text had a mask, −1 for none.
        n_unexplained: changes at positions for which no call gave logits.
    """

    def __init__(self, n_texts: int, mask_id: int, device: torch.device) -> None:
        self.mask_id = mask_id
        self.tokens_NL = torch.full((n_texts, 0), UNSEEN, device=device)
        self.given_NL = torch.zeros((n_texts, 0), dtype=torch.bool, device=device)
        self.live = torch.arange(n_texts, device=device)
        self.changes: list[Changes] = []
        self.last_N = torch.full((n_texts,), -1, device=device)
        self.n_unexplained = 0
        self.n_passes = 0
        self._has_unseen = True
        self._pending: list[Call] = []
        self._tail: tuple[int, Tensor] | None = None

    def fits(self, ids_NW: Tensor, start: int) -> bool:
        """Return whether a call continues this decode: same prompt, and not everything masked again."""
        live = self.live if len(ids_NW) == len(self.live) else self.match(ids_NW, start)
        if live is None or ids_NW.device != self.tokens_NL.device:
            return False
        shown, given, now = self._shown(ids_NW, start, live)
        to_fill = ~given & (shown != UNSEEN)
        held = to_fill & (shown != self.mask_id)
        facts = (
            (given & (now != shown)).any(),
            held.any(),
            (~to_fill | (now == self.mask_id)).all(),
            to_fill.sum() > 1,
        )
        other_prompt, *restarts = torch.stack(facts).tolist()  # one wait for the device
        return not other_prompt and not all(restarts)

    def _shown(self, ids_NW: Tensor, start: int, live: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, given and new ids of the part of a call that the canvas already has."""
        width = max(0, min(ids_NW.shape[1], self.tokens_NL.shape[1] - start))
        part = slice(start, start + width)
        return self.tokens_NL[live][:, part], self.given_NL[live][:, part], ids_NW[:, :width]

    def match(self, ids_NW: Tensor, start: int) -> Tensor | None:
        """Return the text of each row of a smaller batch by its visible tokens; None where one has none."""
        if len(ids_NW) > len(self.live):
            return None
        shown, given, _ = self._shown(ids_NW.new_zeros((len(self.live), ids_NW.shape[1])), start, self.live)
        found: list[int] = []
        for row in ids_NW[:, : shown.shape[1]]:
            same = shown == row
            score = (same & (shown != self.mask_id)).sum(1)
            score[((given & ~same).any(1))] = -1
            score[found] = -1
            best = int(score.argmax())
            if int(score[best]) < 0:
                return None
            found.append(best)
        return self.live[torch.tensor(found, device=self.live.device)]

    def texts_of(self, ids_NW: Tensor) -> Tensor | None:
        """Return the texts of a canvas that is handed over: all, or those still in the batch."""
        if len(ids_NW) == len(self.tokens_NL):
            return torch.arange(len(ids_NW), device=self.live.device)
        return self.live if len(ids_NW) == len(self.live) else None

    def show_call(self, ids_NW: Tensor, start: int) -> None:
        """Take in the ids of a call that fits; texts that it lacks have left the batch."""
        if len(ids_NW) != len(self.live):
            kept = self.match(ids_NW, start)
            assert kept is not None
            place = (self.live[None] == kept[:, None]).long().argmax(1)
            self._tail = None if self._tail is None else (self._tail[0], self._tail[1][place])
            self.live = kept
        self.show(ids_NW, start, self.live)

    def show(self, ids_NW: Tensor, start: int, texts: Tensor) -> None:
        """Take in a part of the canvas; attribute what changed since the last calls."""
        self._grow(ids_NW, start, texts)
        part = slice(start, start + ids_NW.shape[1])
        before = self.tokens_NL[texts][:, part]
        changed = (before != ids_NW).nonzero(as_tuple=True)
        if len(changed[0]):
            self._attribute(changed, before, ids_NW, start, texts)
            self.tokens_NL[texts, part] = ids_NW.to(self.tokens_NL.dtype)
        self._pending = [call for call in self._pending if not self._settle(call, part, texts)]

    def _settle(self, call: Call, part: slice, texts: Tensor) -> bool:
        """Forget the rows of a call that a later canvas shows; return whether none is left."""
        inside = part.start <= call.start and part.stop >= call.stop
        if inside and len(texts) == len(self.tokens_NL):
            return True
        low, high = max(call.start, part.start) - call.start, min(call.stop, part.stop) - call.start
        if low < high:
            call.row_NW[texts, low:high] = -1
        left = call.row_NW >= 0
        rows = call.row_NW[left]
        if len(rows) < len(call.logits_KV):
            call.logits_KV = call.logits_KV[rows]
            call.row_NW[left] = torch.arange(len(rows), device=rows.device)
        return not len(rows)

    def _grow(self, ids_NW: Tensor, start: int, texts: Tensor) -> None:
        """Add positions; those that hold a token when first shown are given."""
        missing = start + ids_NW.shape[1] - self.tokens_NL.shape[1]
        if missing <= 0 and not self._has_unseen:
            return
        if missing > 0:
            self.tokens_NL = torch.nn.functional.pad(self.tokens_NL, (0, missing), value=UNSEEN)
            self.given_NL = torch.nn.functional.pad(self.given_NL, (0, missing))
        part = slice(start, start + ids_NW.shape[1])
        now = self.tokens_NL[texts][:, part]
        new = now == UNSEEN
        self.given_NL[texts, part] |= new & (ids_NW != self.mask_id)
        self.tokens_NL[texts, part] = torch.where(new, ids_NW.to(now.dtype), now)
        self._has_unseen = bool((self.tokens_NL == UNSEEN).any())

    def _attribute(
        self, changed: tuple[Tensor, ...], before: Tensor, now: Tensor, start: int, texts: Tensor
    ) -> None:
        """Record each change with the latest call that has logits for its position."""
        row_C, column_C = changed
        position_C = column_C + start
        left = torch.ones_like(row_C, dtype=torch.bool)
        for call in reversed(self._pending):
            inside = left & (position_C >= call.start) & (position_C < call.stop)
            column = (position_C - call.start).clamp(0, call.row_NW.shape[1] - 1)
            kept_C = torch.where(inside, call.row_NW[texts[row_C], column], -1)
            at = (kept_C >= 0).nonzero()[:, 0]
            if len(at):
                old, new = before[row_C[at], column_C[at]], now[row_C[at], column_C[at]]
                self._add(call, kept_C[at], texts[row_C[at]], position_C[at], old, new)
                left[at] = False
        self.n_unexplained += int(left.sum())

    def _add(
        self, call: Call, kept: Tensor, text: Tensor, position: Tensor, old: Tensor, new: Tensor
    ) -> None:
        if call.number is None:
            call.number = self._next_number()
        stats = row_stats(call.logits_KV[kept], old, new)
        self.changes.append(Changes(call.number, text, position, old, new.to(old.dtype), stats))

    def _next_number(self) -> int:
        self.n_passes += 1
        return self.n_passes - 1

    def called(
        self, ids: Tensor, copy: Tensor, start: int, logits_NKV: Tensor, first: int, *, shift: bool
    ) -> None:
        """Keep what a call may decide: its logits at positions that are not given.

        Args:
            ids: the caller's tensor.
            copy: its values [N, W] when it was passed.
            start: position of the window.
            logits_NKV: the logits.
            first: place in the window of their first row.
            shift: row i is about position i + 1.
        """
        width = copy.shape[1]
        wanted = ~self.given_NL[self.live][:, start : start + width]
        wanted[:, :first] = False
        text, column = wanted.nonzero(as_tuple=True)
        shape = len(self.tokens_NL), width
        row_NW = torch.full(shape, -1, dtype=torch.int64, device=copy.device)
        row_NW[self.live[text], column] = torch.arange(len(text), device=copy.device)
        kept = logits_NKV[text, (column - first - int(shift)).clamp(min=0)]
        if shift:
            kept = self._from_tail(kept, text, column, start)
            self._tail = start + width, logits_NKV[:, -1].clone()
        masked_N = (copy == self.mask_id).any(1)
        number = None
        if bool(masked_N.any()):
            number = self._next_number()
            self.last_N[self.live[masked_N]] = number
        self._pending.append(Call(start, start + width, self.live, row_NW, kept, number, ids))

    def _from_tail(self, kept: Tensor, text: Tensor, column: Tensor, start: int) -> Tensor:
        """Replace the row of a window's first position by the last row of the window before it."""
        if start and self._tail is not None and self._tail[0] == start:
            edge = column == 0
            kept[edge] = self._tail[1][text[edge]].to(kept.dtype)
        return kept

    def close(self) -> None:
        """Read the results of the last calls where the decoder wrote them into the ids that it passed."""
        for call in list(self._pending):
            ids = call.source.to(self.tokens_NL.device)
            part = slice(call.start, call.stop)
            before, given = self.tokens_NL[call.texts][:, part], self.given_NL[call.texts][:, part]
            filled = (before == self.mask_id) & (ids != self.mask_id)
            waits = (call.row_NW[call.texts] >= 0) & filled
            ours = waits.any(1) & ~(given & (ids != before)).any(1)
            if bool(ours.any()):
                self.show(ids[ours], call.start, call.texts[ours])

    def continues(self, ids_NL: Tensor, texts: Tensor) -> bool:
        """Return whether a canvas has the given tokens of this decode."""
        shown, given, now = self._shown(ids_NL, 0, texts)
        return not bool((given & (now != shown)).any())

    def is_window(self, ids_NW: Tensor) -> bool:
        """Return whether ids equal a part of the canvas that starts after its first position."""
        now = self.tokens_NL[self.live]
        if len(ids_NW) != len(now) or not bool((ids_NW == self.mask_id).any()):
            return False
        width, length = ids_NW.shape[1], now.shape[1]
        may_change = (now == self.mask_id) | ~self.given_NL[self.live]
        for start in range(1, length - width + 1):
            part = slice(start, start + width)
            same = (now[:, part] == ids_NW) | (may_change[:, part] & (now[:, part] == self.mask_id))
            if bool(same.all()):
                return True
        return False

    def forget_calls(self) -> None:
        """Free the kept logits."""
        self._pending, self._tail = [], None

    def prompts(self) -> list[list[int]]:
        """Return the given tokens of each text before its first position to fill."""
        lists = zip(self.tokens_NL.tolist(), self.given_NL.tolist(), strict=True)
        return [tokens[: [*given, False].index(False)] for tokens, given in lists]

    def left_masked(self) -> int:
        """Return how many positions of the last calls are still masked."""
        return int((self.tokens_NL == self.mask_id).sum())


def row_stats(logits_CV: Tensor, old_C: Tensor, new_C: Tensor) -> dict[str, Tensor]:
    """Return log-probabilities (nats) at temperature 1 of the rows of some changes.

    Returns:
        ``logq`` of the new token, ``old_logq`` of the old one (the mask's where masked), the two largest
        log-probabilities, the entropy, and whether the new token is the most probable one.
    """
    logp_CV = logits_CV.float().log_softmax(-1)
    top = logp_CV.topk(2, dim=-1)
    of_C2 = torch.stack([new_C, old_C], 1).long().clamp(0, logp_CV.shape[1] - 1)
    logq_C2 = logp_CV.gather(1, of_C2).clamp(max=0)
    return {
        "logq": logq_C2[:, 0],
        "old_logq": logq_C2[:, 1],
        "max_logprob": top.values[:, 0].clamp(max=0),
        "second_logprob": top.values[:, 1].clamp(max=0),
        "entropy": torch.special.entr(logp_CV.exp()).sum(-1),
        "is_argmax": top.indices[:, 0] == new_C,
    }
