"""The mathematics of speculative decoding; imports nothing of ours."""
