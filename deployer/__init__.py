"""Deployer: offline-first, air-gapped deployment of HPC deep learning."""

__version__ = "0.2.0"
