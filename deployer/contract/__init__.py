"""What crosses the gap between the connected side and the site.

Pure functions and records: no I/O, no subprocess, Python 3.6 and the standard library alone.
"""
