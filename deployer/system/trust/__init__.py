"""Who signed a bundle, and whether each byte is theirs."""
