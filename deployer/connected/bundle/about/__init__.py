"""What a bundle contains, for people: SBOM, list, diff, page."""
