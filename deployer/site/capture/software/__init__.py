"""The MPI and fabric libraries of a site, and the modules that load them."""
