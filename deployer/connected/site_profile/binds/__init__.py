"""Bind maps by rule: what of a site's MPI, fabric and GPU driver a job gets, where it sees it, and what tells it so.

One topic per module: ``installation`` (the whole MPI on its own path), ``system`` (single libraries of system folders),
``fabric``, ``gpu``. ``bindmap`` puts them together.
"""
