"""Files that run code when a library loads them: pickles, and code of a hub.

They are recognised by their names and their first bytes. Sources: pickletools; torch.save, whose zip has a
``NAME/data.pkl``; the format of .npy files; transformers' ``trust_remote_code`` and ``torch.hub``.
"""

import re

#: Bytes of a file to read.
HEAD = 512

#: Names of pickles, whatever they begin with; and names that formats without code use as well.
_ALWAYS = re.compile(r"\.(pkl|pickle|joblib)$")
_PERHAPS = re.compile(r"\.(bin|pt|pth|ckpt|sav)$")
_CODE = re.compile(r"/(huggingface/modules|torch/hub/[^/]+)/.*\.py$")
#: How a pickle (protocols 2 to 5) and a zip file begin.
_BEGINS = re.compile(rb"\x80[\x02-\x05]|PK\x03\x04")
#: A pickle whatever its name: its second instruction, or its file in the zip of torch.save; and an array of objects.
_CERTAIN = re.compile(
    rb"\x80[\x04\x05]\x95.{6}\0\0|\x80[\x02\x03][}\]()cX\x8a\x8bKM]|PK\x03\x04.{26}[^/]{1,200}/data\.pkl"
    rb"|\x93NUMPY[^}]{0,40}'descr': ?'\|O", re.DOTALL,
)  # fmt: skip


def runs_code(path: str, head: bytes) -> bool:
    """Return whether a file is code of others, or runs it when a library loads it.

    Args:
        head: its first bytes, at least HEAD unless it is shorter.
    """
    return bool(
        _CODE.search("/" + path)
        or _ALWAYS.search(path)
        or (_PERHAPS.search(path) and _BEGINS.match(head))
        or (_CERTAIN.match(head) and not path.endswith(".safetensors"))  # its library does not unpickle
    )
