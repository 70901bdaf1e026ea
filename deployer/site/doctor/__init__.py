"""doctor: test from the kernel to Horovod on two nodes, rung by rung, up to the first failure.

``climb`` has the ladder and its report; ``here`` has the rungs on this machine, ``cluster`` those in jobs.
"""
