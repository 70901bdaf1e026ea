"""capture: collect the facts of a site without special rights and without changes, in half a minute at most.

One module per topic. Each returns a part of a site profile, and leaves out what it cannot determine.
"""
