"""doctor: test everything from the kernel to Horovod on two nodes, one rung at a time, up to the first failure.

``climb`` contains the ladder and its report, ``here`` the rungs on this machine, and ``cluster`` those in jobs.
"""
