"""The only I/O that both sides share: processes, files, tar headers, codecs."""
