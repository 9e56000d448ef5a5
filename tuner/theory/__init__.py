"""The mathematics of speculative decoding; imports nothing of ours but the exceptions.

Three sources carry most of it: the acceptance theorem and the geometric model of Leviathan,
Kalman and Matias 2023 (arXiv:2211.17192) and Chen et al. 2023 (arXiv:2302.01318), and the
roofline of Williams, Waterman and Patterson 2009 (CACM 52(4)). The worked numbers in the tests
are those of the essays "Why Batching Kills Your 3x Speedup", "Why 80% Acceptance Still Loses at
Batch 64" and of the lesson "When Speculation Loses".
"""
