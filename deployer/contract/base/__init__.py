"""What all other rooms use: errors, records, texts, words of a shell."""
