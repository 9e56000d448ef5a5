"""Keep LLM serving engines on the speculative draft length that pays."""

__version__ = "0.1.0.dev0"
