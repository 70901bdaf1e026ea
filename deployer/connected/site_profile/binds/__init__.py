"""Bind maps: the files of a site's MPI, fabric and GPU driver that a job sees, their paths, and the environment.

One topic per module: ``installation`` (an MPI on its own path), ``packaged`` (an MPI among the system's own libraries),
``system`` (single libraries from system folders), ``fabric``, ``gpu``. ``bindmap`` combines them.
"""
