"""The content of the site's root folder: installed images, their data, and the ways to find them."""
