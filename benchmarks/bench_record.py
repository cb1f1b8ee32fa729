"""What ``ol.record`` costs: share of a pass, and bytes per 1,000 reveals, at the shape of LLaDA-8B.

    python benchmarks/bench_record.py                      # CUDA, 32 layers, batch 1 and 8: about a minute
    python benchmarks/bench_record.py --layers 1 --hidden 64 --vocab 1000 --device cpu --passes 4

Random bfloat16 weights, a prompt of 128 tokens and 256 positions to fill. The decoder reveals four tokens per
text and pass by confidence, as LLaDA's sampler does. Decodes with and without recording alternate; the
median time of a pass is compared. Goal: at most 10 % of a pass, and at most 1 MB per 1,000 reveals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import orderlens as ol

PROMPT, LENGTH, PER_PASS = 128, 256, 4


class Layer(nn.Module):
    """A Llama-like layer without rotary embedding, which costs little: attention and a gated product."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.into = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x_NLH: Tensor) -> Tensor:
        n, length, hidden = x_NLH.shape
        qkv = self.into(self.norms[0](x_NLH)).view(n, length, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x_NLH = x_NLH + self.out(seen.transpose(1, 2).reshape(n, length, hidden))
        gate, up = self.up(self.norms[1](x_NLH)).chunk(2, -1)
        found: Tensor = x_NLH + self.down(nn.functional.silu(gate) * up)
        return found


class Network(nn.Module):
    """Token ids [N, L] to logits [N, L, V]."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        heads = max(1, args.hidden // 128)
        self.layers = nn.ModuleList(Layer(args.hidden, heads, 3 * args.hidden) for _ in range(args.layers))
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x_NLH = self.embed(ids)
        for layer in self.layers:
            x_NLH = layer(x_NLH)
        found: Tensor = self.head(x_NLH)
        return found


@torch.no_grad()
def decode(network: nn.Module, ids: Tensor, passes: int, mask_id: int) -> list[float]:
    """Fill ``PER_PASS`` positions of each text per pass, in place; return the seconds of each pass."""
    times = []
    for _ in range(passes):
        wait(ids)
        start = time.perf_counter()
        logits = network(ids)
        p_NL, token_NL = logits.float().softmax(-1)[..., :mask_id].max(-1)
        best = torch.where(ids == mask_id, p_NL, -1.0).topk(PER_PASS).indices
        ids.scatter_(1, best, token_NL.gather(1, best))
        del logits, p_NL
        wait(ids)
        times.append(time.perf_counter() - start)
    return times


def wait(tensor: Tensor) -> None:
    """Wait for the device."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def measure(network: nn.Module, args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Return milliseconds per pass without and with recording, and the size of the run."""
    mask_id = args.vocab - 1
    prompt = torch.randint(0, mask_id, (batch, PROMPT), device=args.device)
    fresh = torch.cat([prompt, torch.full((batch, LENGTH), mask_id, device=args.device)], 1)
    plain, recorded = [], []
    decode(network, fresh.clone(), 3, mask_id)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.turns):
            plain += decode(network, fresh.clone(), args.passes, mask_id)[1:]
            out = Path(folder) / str(turn)
            with ol.record(network, mask_id=mask_id, out=out) as rec:
                recorded += decode(network, fresh.clone(), args.passes, mask_id)[1:]
                start = time.perf_counter()
            saving = time.perf_counter() - start
        size = sum(file.stat().st_size for file in out.rglob("*.parquet"))
        reveals = rec.run.reveals().to_arrow().num_rows
    before, after = 1e3 * statistics.median(plain), 1e3 * statistics.median(recorded)
    found = {"batch": batch, "pass_ms": before, "recorded_ms": after, "share": after / before - 1}
    per = 1000 / max(1, reveals)
    return found | {
        "reveals": reveals,
        "bytes_per_1000": size * per,
        "saving_ms_per_1000": 1e3 * saving * per,
    }


def main() -> None:
    """Print one line of JSON per batch size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=126_464)
    parser.add_argument("--passes", type=int, default=LENGTH // PER_PASS)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("meta"):
        network = Network(args).to(torch.bfloat16).eval()
    network = network.to_empty(device=args.device)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0.0, 0.02) if weight.ndim > 1 else weight.fill_(1.0)
    for batch in args.batches:
        found = measure(network, args, batch)
        print(json.dumps({name: round(value, 4) for name, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
