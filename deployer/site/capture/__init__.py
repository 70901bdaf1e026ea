"""capture: collect the facts of a site within half a minute, without special rights and without changing anything.

One module per topic. Each returns part of a site profile and omits what it cannot determine.
"""
