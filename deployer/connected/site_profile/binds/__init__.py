"""Bind maps: the host files that a job sees (MPI, fabric, GPU driver), their paths, and the environment.

Modules by topic: ``installation`` (an MPI on its own path), ``packaged`` (an MPI in system folders),
``system`` (single libraries from system folders), ``fabric``, ``gpu``. ``bindmap`` combines them.
"""
