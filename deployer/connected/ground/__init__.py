"""What all stages of the connected side use: folders, progress, YAML models, signing, the Docker engine."""
