"""doctor: from the kernel to Horovod on two nodes, rung by rung, up to the first that is broken.

``climb`` is the ladder and what is told of it; ``here`` the rungs on this machine, ``cluster`` those in jobs.
"""
