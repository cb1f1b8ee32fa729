"""The canvas of one recorded decode: what changed between two calls, and what the earlier call says about it.

What differs between the input of a call and that of the next was decided by the earlier call, and its log q
is in the logits of that call. Only logits of positions that may change are kept, until the next call that
shows these positions. Token ids and positions are on the host, logits and statistics on the network's device:
nothing here waits for the device while a decoder runs. Does not depend on files.

Shape letters: N texts, W positions of a call, L positions of the canvas, K kept rows, C changes, V ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orderlens.decode.record_calls import to_device

UNSEEN = -1
"""Token at positions that no call has shown."""
STATS = ("logq", "old_logq", "max_logprob", "second_logprob", "entropy", "is_argmax")
"""Rows of the statistics of changes."""
COMPARED = 64
"""Reveals of a decode that are compared with the logits of the neighbouring row."""


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
    """The changes that one call decided: tensors [C], and ``STATS`` [6, C] on the network's device."""

    forward: int
    text_C: Tensor
    position_C: Tensor
    old_C: Tensor
    new_C: Tensor
    stats: Tensor


class RecordedCanvas:
    """The tokens of the texts of one decode.

    Attributes:
        tokens_NL: what the last call showed; ``UNSEEN`` where no call did.
        given_NL: positions that held a token when they were first shown.
        changes: everything that was decided so far.
        last_N: number of the last pass in which each text had a mask, −1 for none.
        n_unexplained: changes at positions for which no call gave logits.
        is_guided: whether the batch of its calls is doubled for guidance.
    """

    def __init__(self, n_texts: int, mask_id: int, *, shift: bool = False, is_guided: bool = False) -> None:
        self.mask_id, self.shift, self.is_guided = mask_id, shift, is_guided
        self.tokens_NL = torch.full((n_texts, 0), UNSEEN)
        self.given_NL = torch.zeros((n_texts, 0), dtype=torch.bool)
        self.live = torch.arange(n_texts)
        self.changes: list[Changes] = []
        self.last_N = torch.full((n_texts,), -1)
        self.n_unexplained = 0
        self.n_passes = 0
        self._has_unseen = True
        self._pending: list[Call] = []
        self._tail: tuple[int, Tensor] | None = None
        self._compared: list[Tensor] = []

    def fits(self, ids_NW: Tensor, start: int) -> bool:
        """Return whether a call continues this decode: same prompt, and not everything masked again."""
        live = self.live if len(ids_NW) == len(self.live) else self.match(ids_NW, start)
        if live is None:
            return False
        shown, given, now = self._shown(ids_NW, start, live)
        to_fill = ~given & (shown != UNSEEN)
        held = to_fill & (shown != self.mask_id)
        is_restart = bool(held.any()) and int(to_fill.sum()) > 1
        is_restart = is_restart and bool((~to_fill | (now == self.mask_id)).all())
        return not is_restart and not bool((given & (now != shown)).any())

    def is_without_prompt(self, ids_NW: Tensor) -> bool:
        """Return whether ids are this canvas with given tokens masked: the second call of guidance."""
        now = self.tokens_NL[self.live]
        given = self.given_NL[self.live]
        if ids_NW.shape != now.shape or bool(given.all()):
            return False
        differs = ids_NW != now
        return bool(differs.any()) and bool((~differs | (given & (ids_NW == self.mask_id))).all())

    def began_without_prompt(self, ids_NW: Tensor) -> bool:
        """Return whether only the second call had the first tokens of all texts: guidance in two calls."""
        if self.n_passes != 2 or bool(self.given_NL.any()) or ids_NW.shape != self.tokens_NL.shape:
            return False
        held = self.tokens_NL != self.mask_id
        is_start = held[:, :2].all() & (held == held.long().cumprod(1).bool()).all()
        is_gone = (ids_NW[held] == self.mask_id).all() & (ids_NW != self.mask_id).any()
        return bool(is_start & is_gone)

    def are_candidates(self, ids_NW: Tensor) -> bool:
        """Return whether a larger batch tries tokens: each row has the given tokens of a text, and others."""
        now, given = self.tokens_NL[self.live], self.given_NL[self.live]
        if len(ids_NW) <= len(now) or ids_NW.shape[1] != now.shape[1] or bool(given.all()):
            return False
        is_text = (given[None] <= (ids_NW[:, None] == now[None])).all(2)  # [rows, texts]
        filled = (~given[is_text.long().argmax(1)] & (ids_NW != self.mask_id)).any()
        return bool(is_text.any(1).all() & filled)

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
        return self.live[torch.tensor(found)]

    def texts_of(self, ids_NW: Tensor) -> Tensor | None:
        """Return the texts of a canvas that is handed over: all, or those still in the batch."""
        if len(ids_NW) == len(self.tokens_NL):
            return torch.arange(len(ids_NW))
        return self.live if len(ids_NW) == len(self.live) else None

    def show_call(self, ids_NW: Tensor, start: int) -> None:
        """Take in the ids of a call that fits; texts that it lacks have left the batch."""
        if len(ids_NW) != len(self.live):
            kept = self.match(ids_NW, start)
            assert kept is not None
            place = (self.live[None] == kept[:, None]).long().argmax(1)
            if self._tail is not None:
                self._tail = self._tail[0], self._tail[1][to_device(place, self._tail[1].device)]
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
            call.logits_KV = call.logits_KV[to_device(rows, call.logits_KV.device)]
            call.row_NW[left] = torch.arange(len(rows))
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
        kept_d, old_d, new_d = to_device(torch.stack([kept, old, new]), call.logits_KV.device)
        stats = row_stats(call.logits_KV[kept_d], old_d, new_d)
        self.changes.append(Changes(call.number, text, position, old, new, stats))
        if len(self._compared) < COMPARED:
            self._compare(call, text, position - call.start, old, new, stats[STATS.index("is_argmax")])

    def _compare(
        self, call: Call, text: Tensor, column: Tensor, old: Tensor, new: Tensor, is_argmax: Tensor
    ) -> None:
        """Keep whether revealed tokens are the most probable ones of their row, and of the neighbouring one.

        The neighbouring row is the one that would belong to the position if ``shift`` were the opposite.
        """
        other = column + (1 if self.shift else -1)
        inside = (other >= 0) & (other < call.row_NW.shape[1]) & (old == self.mask_id)
        row_C = torch.where(inside, call.row_NW[text, other.clamp(0, call.row_NW.shape[1] - 1)], -1)
        at = (row_C >= 0).nonzero()[:, 0]
        if len(at):
            at_d, row_d, new_d = to_device(torch.stack([at, row_C[at], new[at]]), call.logits_KV.device)
            other_max = call.logits_KV[row_d].argmax(-1) == new_d
            self._compared += torch.stack([is_argmax[at_d], other_max.to(is_argmax.dtype)]).unbind(1)

    def neighbour_shares(self) -> tuple[int, float, float] | None:
        """Return how many reveals were compared, and the shares that their own and the other row predict."""
        if not self._compared:
            return None
        own, other = torch.stack(self._compared).mean(0).tolist()
        return len(self._compared), own, other

    def _next_number(self) -> int:
        self.n_passes += 1
        return self.n_passes - 1

    def called(self, ids: Tensor, copy: Tensor, start: int, logits_NKV: Tensor, first: int) -> None:
        """Keep what a call may decide: its logits at positions that are not given.

        Args:
            ids: the caller's tensor.
            copy: its values [N, W] when it was passed.
            start: position of the window.
            logits_NKV: the logits.
            first: place in the window of their first row.
        """
        width = copy.shape[1]
        wanted = ~self.given_NL[self.live][:, start : start + width]
        wanted[:, :first] = False
        text, column = wanted.nonzero(as_tuple=True)
        row_NW = torch.full((len(self.tokens_NL), width), -1)
        row_NW[self.live[text], column] = torch.arange(len(text))
        kept = self._gather(logits_NKV, text, column - first)
        if self.shift:
            kept = self._from_tail(kept, text, column, start)
            self._tail = start + width, logits_NKV[:, -1].clone()
        masked_N = (copy == self.mask_id).any(1)
        number = None
        if bool(masked_N.any()):
            number = self._next_number()
            self.last_N[self.live[masked_N]] = number
        self._pending.append(Call(start, start + width, self.live, row_NW, kept, number, ids))

    def _gather(self, logits_NKV: Tensor, text: Tensor, row: Tensor) -> Tensor:
        """Return a copy of the logits [K, V] of positions, which are row − 1 with shifted logits."""
        indices = torch.stack([text, (row - int(self.shift)).clamp(min=0)])
        text_d, row_d = to_device(indices, logits_NKV.device)
        return logits_NKV[text_d, row_d]

    def guided(self, logits_NKV: Tensor, first: int, scale: float) -> None:
        """Mix the logits of a call without the prompt into those that the last call kept."""
        call = self._pending[-1]
        text, column = (call.row_NW[self.live] >= 0).nonzero(as_tuple=True)
        free = self._gather(logits_NKV, text, column - first).float()
        call.logits_KV = free + (scale + 1) * (call.logits_KV.float() - free)

    def _from_tail(self, kept: Tensor, text: Tensor, column: Tensor, start: int) -> Tensor:
        """Replace the row of a window's first position by the last row of the window before it."""
        edge = (column == 0).nonzero()[:, 0]
        if start and self._tail is not None and self._tail[0] == start and len(edge):
            edge_d, text_d = to_device(torch.stack([edge, text[edge]]), kept.device)
            kept[edge_d] = self._tail[1][text_d].to(kept.dtype)
        return kept

    def close(self) -> None:
        """Read the results of the last calls where the decoder wrote them into the ids that it passed."""
        for call in list(self._pending):
            ids = call.source.cpu().long()
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

    def tail_start(self, ids_NW: Tensor, texts: Tensor) -> int | None:
        """Return where ids begin that hold the positions after the prompt alone; None if they do not fit."""
        start = self.tokens_NL.shape[1] - ids_NW.shape[1]
        if start <= 0 or not bool(self.given_NL[texts, :start].all()):
            return None
        shown = self.tokens_NL[texts, start:]
        is_known = self.given_NL[texts, start:] | (shown != self.mask_id)
        return start if bool((~is_known | (shown == ids_NW)).all()) else None

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


def row_stats(logits_CV: Tensor, old_C: Tensor, new_C: Tensor) -> Tensor:
    """Return log-probabilities (nats) at temperature 1 of the rows of some changes.

    Returns:
        ``STATS`` [6, C]: log q of the new token, that of the old one (the mask's where masked), the two
        largest log-probabilities, the entropy, and whether the new token is a most probable one (0 or 1).
    """
    logp_CV = logits_CV.float().log_softmax(-1)
    top_C, at_C = logp_CV.max(-1)
    second_C = logp_CV.scatter(1, at_C[:, None], -torch.inf).amax(-1)
    of_2C = torch.stack([new_C, old_C])
    known_2C = of_2C.clamp(0, logp_CV.shape[1] - 1)
    logq_C, old_logq_C = logp_CV.gather(1, known_2C.T).T.where(of_2C == known_2C, -torch.inf)
    entropy_C = torch.special.entr(logp_CV.exp()).sum(-1)
    logq_4C = torch.stack([logq_C, old_logq_C, top_C, second_C]).clamp(max=0)
    return torch.cat([logq_4C, torch.stack([entropy_C, (logq_C == top_C).to(entropy_C.dtype)])])
