"""KVLab: a wind tunnel for KV-cache policies and LLM schedulers (docs/python.md)."""

from kvlab import _kvlab
