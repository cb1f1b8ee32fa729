"""Compile our kernels for GPUs that this machine does not have, and check shared memory and registers.

Triton needs no GPU to compile for one. Every kernel is launched through our code on meta tensors, at the
shapes of published models and with that GPU's tiles; the launch stops after compilation. This checks neither
speed nor results. From the repository's root:

    python benchmarks/compile_kernels.py                           five kinds of GPUs, some minutes
    python benchmarks/compile_kernels.py --gpus 8.0 --parts experts
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from orderlens.kernels import attention, rowwise
from orderlens.kernels.experts import experts, route
from orderlens.kernels.gpu import Gpu, gpu_of, gpu_with
from orderlens.kernels.head import fused_head
from orderlens.kernels.pairs import Pairs
from orderlens.kernels.shapes import PAGE, StackedExperts
from orderlens.models.decoder.network import ExpertNetwork
from orderlens.models.decoder.triton_ops import TritonOps
from orderlens.models.decoder.weights import random_weights, stacked_float8
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import HEADER, Windows
from orderlens.models.families.llada2 import MINI

GPUS = {
    "8.0": "A100",
    "8.9": "L40S, RTX 4090",
    "9.0": "H100, H200",
    "10.0": "B200",
    "12.0": "RTX 5090, RTX PRO 6000",
}
EXPERT_TOKENS = "32,512,1024,2048,4096,16384,81920"
HEAD_ROWS = (16, 32, 64, 1024, 4096)


class Compiled(NamedTuple):
    """One kernel at one set of sizes: bytes of shared memory, registers, and bytes spilled per thread."""

    what: str
    kernel: str
    shared: int
    registers: int
    spilled: int


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def launch_experts(gpu: Gpu, sizes: list[int]) -> Iterator[str]:
    """Launch one layer of the LLaDA-2 mini shape for few to many tokens."""
    E, C, F = MINI.n_experts + MINI.n_shared, MINI.hidden_size, MINI.expert_width
    plain = StackedExperts(_empty(E, 2 * F, C), _empty(E, C, F))
    kinds = {"bf16": plain, "fp8": stacked_float8(plain)}
    for tokens, (kind, stacked) in product(sizes, kinds.items()):
        yield f"experts in {kind}, {tokens:,} tokens"
        logits_TE = _empty(tokens, MINI.n_experts, dtype=torch.float32)
        bias_E = _empty(MINI.n_experts, dtype=torch.float32)
        ids_TK, weights_TK, visits = route.choose_experts(logits_TE, bias_E, MINI)
        if stacked.ordered:
            from orderlens.kernels.experts.float8_hopper import float8_rows

            pairs = Pairs.empty(tokens, C, 1, torch.device("meta"))
            y_AC = float8_rows(pairs, stacked, ids_TK, visits, torch.bfloat16)
        else:
            tiling = experts.choose_tiling(ids_TK.numel(), E, gpu, float8=stacked.is_float8)
            y_AC = experts.expert_rows(_empty(tokens, C), stacked, ids_TK, visits, tiling)
        experts.combine(y_AC, weights_TK, _empty(tokens, C), _empty(C), 1e-6)


def launch_few(_gpu: Gpu, _sizes: list[int]) -> Iterator[str]:
    """Launch whole forwards of few tokens."""
    nowhere, few = torch.device("meta"), replace(MINI, n_layers=MINI.n_dense_layers + 1)
    weights = random_weights(few, nowhere, torch.bfloat16)
    network = ExpertNetwork(weights, few, TritonOps(few, nowhere, torch.bfloat16))
    pool = PagePool(few, nowhere, torch.bfloat16, n_pages=2, n_rows=2)
    for count in (1, 2):
        yield f"LLaDA-2, forward of {32 * count} tokens"
        windows = Windows(_empty(count, HEADER + 32, dtype=torch.int32), 64)
        network.store(windows, pool)
        network.hidden(windows, pool)


def launch_attention(_gpu: Gpu, _sizes: list[int]) -> Iterator[str]:
    """Launch windows over a paged prefix (LLaDA-2, smol) and whole canvases (LLaDA-8B, MDLM)."""
    for name, H, K, D, rotary, normed in (
        ("LLaDA-2", 16, 4, 128, 64, True),
        ("smol", 9, 3, 64, 64, False),
        ("SDAR", 32, 8, 128, 128, True),
    ):
        shape = _heads(H, K, D, rotary)
        pool: Any = SimpleNamespace(
            keys=[_empty(4, K, PAGE, D)],
            values=[_empty(4, K, PAGE, D)],
            table_RX=_empty(4, 16, dtype=torch.int32),
        )
        norms: Any = SimpleNamespace(**dict.fromkeys(("q_norm_D", "k_norm_D"), _empty(D) if normed else None))
        for count, width in ((4, 32), (16, 32), (16, 64)):
            windows = Windows(_empty(count, 3 + width, dtype=torch.int32), 1024)
            fused_TO = _empty(count * width, (H + 2 * K) * D)
            yield f"{name}, {count} windows of {width}"
            for store in (False, True):
                rowwise.prepare_heads(fused_TO, norms, _tables(rotary), windows, pool, 0, shape, store)
            for splits in (1, 8):
                attention.attend(_empty(count * width, H + K, D), fused_TO, windows, pool, 0, shape, splits)
    for name, H, D, width in (("LLaDA-8B", 32, 128, 160), ("LLaDA-8B", 32, 128, 192), ("MDLM", 12, 64, 1024)):
        for count in (1, 32):
            yield f"{name}, {count} canvases of {width}"
            attention.attend_canvas(_empty(count * width, 3 * H * D), count, _tables(D), _heads(H, H, D, D))


def launch_head(gpu: Gpu, _sizes: list[int]) -> Iterator[str]:
    """Launch the output head with and without draws, and the row-wise kernels."""
    for name, V, D in (("LLaDA-2", 157184, 2048), ("smol", 49152, 576)):
        unembed_VD = _empty(V, D)
        for rows in HEAD_ROWS:
            yield f"{name}, head on {rows:,} rows"
            targets_R = _empty(rows, dtype=torch.int64)
            fused_head.reduce_fused(
                _empty(rows, D), unembed_VD, excluded=(5,), eos_ids=(1,), targets_R=targets_R
            )
            draw = fused_head.Draw(0.7, _empty(rows, dtype=torch.float64))
            fused_head.reduce_fused(_empty(rows, D), unembed_VD, excluded=(5,), eos_ids=(1,), draw=draw)
    yield "norm, pairs, SwiGLU"
    rowwise.add_rms_norm(_empty(32, 2048), _empty(32, 2048), _empty(2048), 1e-6)
    if gpu.specialises:
        pairs = Pairs.empty(32, 2048, 1, torch.device("meta"))
        rowwise.add_rms_norm(_empty(32, 2048), _empty(32, 2048), _empty(2048), 1e-6, pairs)
    rowwise.swiglu(_empty(32, 2 * 12288))


PARTS: dict[str, Callable[[Gpu, list[int]], Iterator[str]]] = {
    "experts": launch_experts,
    "few": launch_few,
    "attention": launch_attention,
    "head": launch_head,
}


def _heads(n_heads: int, n_kv_heads: int, width: int, rotary: int) -> Any:
    return SimpleNamespace(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_width=width,
        rotary_width=rotary,
        max_positions=2048,
        norm_eps=1e-6,
    )


def _tables(rotary: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty(2048, rotary // 2, dtype=torch.float32), _empty(2048, rotary // 2, dtype=torch.float32)


class _Absent:
    """A stub driver that reports the compute capability to compile for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # kernels are cached by device, so each GPU type counts as a device

    def get_current_stream(self, _: int | None = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu


@contextmanager
def compiling(capability: tuple[int, int], found: Callable[[str, Any], None]) -> Iterator[Gpu]:
    """Compile instead of launching, for this compute capability; adds name and kernel to ``found``."""
    launch, number = JITFunction.run, 10 * capability[0] + capability[1]
    about = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=100)

    def compile_only(self: Any, *args: Any, **options: Any) -> Any:
        kernel = launch(self, *args, **(options | {"warmup": True}))
        found(self.__name__, kernel)
        return kernel

    driver.set_active(_Absent(number))
    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "current_device", lambda: number),
        patch.object(torch.cuda, "get_device_properties", lambda _: about),
    ):
        yield gpu_of(torch.device("meta"))


def resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers, and the bytes per thread that did not fit into them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    match = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout)
    assert match is not None, said.stdout
    return int(match[1]), int(match[2])


def compile_all(capability: tuple[int, int], parts: list[str], tokens: list[int]) -> list[Compiled]:
    """Return every kernel of these parts as compiled for this compute capability."""
    seen: dict[str, Compiled] = {}
    what = ""

    def found(name: str, kernel: Any) -> None:
        if kernel.hash not in seen:
            registers, spilled = resources(kernel.asm["cubin"])
            seen[kernel.hash] = Compiled(what, name, kernel.metadata.shared, registers, spilled)

    with compiling(capability, found) as gpu:
        for part in parts:
            for what in PARTS[part](gpu, tokens):  # noqa: B007 (what is launched next)
                pass
    return list(seen.values())


def main(arguments: list[str] | None = None) -> int:
    """Compile and print; return 1 if a kernel does not fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", default=",".join(GPUS), help="compute capabilities, comma-separated")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of " + ", ".join(PARTS))
    parser.add_argument("--tokens", default=EXPERT_TOKENS, help="of a forward, for experts; comma-separated")
    parser.add_argument("--all", action="store_true", help="print every kernel")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 is set: interpreted kernels are not compiled")
    tokens = [int(size) for size in options.tokens.split(",")]
    fits = [report(name, options.parts.split(","), tokens, options.all) for name in options.gpus.split(",")]
    return 0 if all(fits) else 1


def report(name: str, parts: list[str], tokens: list[int], every: bool) -> bool:
    """Compile for one compute capability, print the results, and return whether all kernels fit."""
    major, minor = map(int, name.split("."))
    limit = gpu_with((major, minor), 1).shared_bytes
    kernels = compile_all((major, minor), parts, tokens)
    over = [kernel for kernel in kernels if kernel.shared > limit]
    spills = [kernel.spilled for kernel in kernels if kernel.spilled]
    print(
        f"{name} ({GPUS.get(name, 'GPU')}): {len(kernels)} kernels; shared memory at most "
        f"{max(kernel.shared for kernel in kernels):,} of {limit:,} bytes, {len(over)} too large; "
        f"{len(spills)} spill registers, {max(spills, default=0)} bytes per thread at most",
        flush=True,
    )
    for kernel in kernels if every else over:
        print(
            f"  {kernel.what}: {kernel.kernel}, {kernel.shared:,} bytes, {kernel.registers} registers, "
            f"{kernel.spilled} bytes spilled"
        )
    return not over


if __name__ == "__main__":
    sys.exit(main())
