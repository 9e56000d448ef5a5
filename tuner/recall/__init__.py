"""What a cycle looks at: a bounded memory of windows that stands for all of them."""

from tuner.recall.recall import Recall

__all__ = ["Recall"]
