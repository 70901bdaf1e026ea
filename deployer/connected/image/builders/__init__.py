"""Builders: programs that make an image in the engine from a build context. Each is a module with one class."""
