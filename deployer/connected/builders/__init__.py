"""What builds images: the engine, the bases, and the build settings of the host."""
