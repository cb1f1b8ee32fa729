"""What only our own tests need: small random checkpoints of published families, a place for kernels."""

from support.dense import write_dense
from support.dit import write_bd3lm, write_mdlm, write_sedd
from support.encoders import write_bert, write_modernbert, write_roberta, write_xlnet
from support.kernels import kernel_place
from support.llada2 import write_llada2
from support.moe import write_moe

__all__ = [
    "kernel_place",
    "write_bd3lm",
    "write_bert",
    "write_dense",
    "write_llada2",
    "write_mdlm",
    "write_modernbert",
    "write_moe",
    "write_roberta",
    "write_sedd",
    "write_xlnet",
]
