"""The data that passes from the connected side to the site, and back.

Pure functions and records: no I/O, no subprocess, only Python 3.6 and its standard library.
"""
