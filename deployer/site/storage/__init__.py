"""The content of the site's root folder: installed images, their data, and how they are found."""
