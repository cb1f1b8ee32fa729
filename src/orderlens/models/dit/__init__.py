"""Diffusion transformers with adaptive norms (DDiT): MDLM, BD3-LM and SEDD with absorbing noise."""
