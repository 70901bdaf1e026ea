"""The matrix: real images on real sites, what ``check`` says beforehand against what is seen. See docs/verdicts.md."""
