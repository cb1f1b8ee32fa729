"""How ``doctor`` describes a LLaDA-2.x checkpoint that is not loaded."""

from __future__ import annotations

from orderlens.models.llada2.checkpoint import check_tensors
from orderlens.models.llada2.config import FLASH, MINI, parse_config
from orderlens.models.torch.outlook import Look

LOOK = Look(parse_config, check_tensors, {r"llada2.*mini": MINI, r"llada2.*flash": FLASH}, mapped=True)
