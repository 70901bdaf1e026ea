"""Deployer: offline-first, air-gapped deployment of HPC deep learning."""

__version__ = "0.1.0"
