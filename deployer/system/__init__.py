"""Input and output that both sides use: processes, files, signatures, verification, codecs."""
