"""The way to the site: one ssh connection, parts, and the site half at its other end."""
