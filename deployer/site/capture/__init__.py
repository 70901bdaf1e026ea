"""capture: what a site is, found out without rights, without changing anything, in half a minute at the most.

One module a topic. Each returns a part of a site profile; what it cannot find out it leaves out.
"""
