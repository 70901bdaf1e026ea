"""Transfer to a site: one ssh connection, the parts of a bundle, and commands of the site's deployer."""
