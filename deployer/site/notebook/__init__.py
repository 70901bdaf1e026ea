"""A notebook: JupyterLab of an image in a job of its own, for a browser on the laptop."""
