"""LLaMA-Factory imports it for sounds; its wheel does not load beside the CPU build of torch."""
