"""Helpers for tests of code that uses OrderLens: stub model, made runs, small random checkpoints.

Importing this needs the plain install; what writes or builds torch models imports torch when it is called.
"""

from __future__ import annotations

from orderlens.testing.dense import write_dense
from orderlens.testing.dit import write_bd3lm, write_mdlm, write_sedd
from orderlens.testing.encoders import write_bert, write_modernbert, write_roberta, write_xlnet
from orderlens.testing.kernels import kernel_place
from orderlens.testing.llada2 import write_llada2
from orderlens.testing.runs import assert_same_rows
from orderlens.testing.small import small_model, write_small
from orderlens.testing.stub import StubModel
from orderlens.testing.traces import make_run, make_table, make_trace, random_path, random_trace

__all__ = [
    "StubModel",
    "assert_same_rows",
    "kernel_place",
    "make_run",
    "make_table",
    "make_trace",
    "random_path",
    "random_trace",
    "small_model",
    "write_bd3lm",
    "write_bert",
    "write_dense",
    "write_llada2",
    "write_mdlm",
    "write_modernbert",
    "write_roberta",
    "write_sedd",
    "write_small",
    "write_xlnet",
]
