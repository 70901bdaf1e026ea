"""Base images and the C library of each, oldest first."""

#: Sources: packages.debian.org/src:glibc; for the others, gist.github.com/richardlau/6a01d7829cc33ddab35269dacc127680
#: (2025).
GLIBC = (
    ("RHEL 8 and compatible", (2, 28)),
    ("Debian 11 (bullseye)", (2, 31)),
    ("Ubuntu 20.04", (2, 31)),
    ("RHEL 9 and compatible", (2, 34)),
    ("Ubuntu 22.04", (2, 35)),
    ("Debian 12 (bookworm)", (2, 36)),
    ("Ubuntu 24.04", (2, 39)),
    ("RHEL 10 and compatible", (2, 39)),
    ("Debian 13 (trixie)", (2, 41)),
)


def newer_base(version: str) -> str:
    """Return the remedy for a symbol version (``GLIBC_2.38``) that an image's library lacks."""
    kind, _, number = version.partition("_")
    parts = number.split(".")
    if kind != "GLIBC" or len(parts) < 2 or not all(part.isdigit() for part in parts):
        return "build the image on a newer base"
    names = ", ".join(name for name, has in GLIBC if has >= (int(parts[0]), int(parts[1])))
    remedy = f"build the image on a base with glibc {number} or newer"
    return f"{remedy}: {names}" if names else f"{remedy}, which no common base has yet"
