/* A stand-in for a library of a GPU's driver, or of a system folder: it says of which version it is. */
int stand_in_version(void) { return VERSION; }
