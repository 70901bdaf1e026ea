"""Wheels made by hand, good and hostile, for tests on Python 3.6 too."""

import base64
import hashlib
import io
import zipfile


def record_line(name, content, algorithm="sha256"):
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()
    return f"{name},{algorithm}={digest},{len(content)}\n"


def wheel(
    files,
    name="demo",
    version="1.0",
    modes=None,
    record=None,
    extra=(),
    metadata="Wheel-Version: 1.0\n",
    info=None,
    requires=(),
):
    """Return the bytes of a wheel with ``files``, name to content.

    ``modes``: name to Unix mode with type; ``record``: the text of RECORD in place of the right one; ``extra``: (name,
    content) pairs that RECORD does not have, or that the archive already has; ``info``: the metadata's folder;
    ``requires``: the distributions that it needs.
    """
    info = info or f"{name}-{version}.dist-info"
    contents = dict(files)
    contents[info + "/WHEEL"] = metadata.encode()
    lines = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version]
    lines += ["Requires-Dist: " + requirement for requirement in requires]
    contents[info + "/METADATA"] = ("\n".join(lines) + "\n").encode()
    if record is None:
        record = "".join(record_line(path, contents[path]) for path in contents) + info + "/RECORD,,\n"
    contents[info + "/RECORD"] = record.encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in [*contents.items(), *extra]:
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (modes or {}).get(path, 0o100644) << 16
            archive.writestr(entry, content)
    return stream.getvalue()


def file_name(name="demo", version="1.0", tag="py3-none-any"):
    return f"{name}-{version}-{tag}.whl"
