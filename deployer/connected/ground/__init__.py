"""Common tools of the connected side: folders, progress, YAML models, signing, the Docker engine."""
