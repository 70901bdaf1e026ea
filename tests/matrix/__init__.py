"""The matrix: real images on real sites, what ``check`` says beforehand against what is seen.

The results are in docs/evidence/verdicts.md.
"""
