"""An installed image as a container: binds, environment, runtimes."""
