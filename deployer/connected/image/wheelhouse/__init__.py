"""The wheelhouse of a bundle: resolve, lock and download its wheels."""
