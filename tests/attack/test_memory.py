"""Input from outside never takes more than 512 MiB of memory: what it would need is counted before it is parsed.

Each hostile input is read in a process of its own, whose peak is measured. The limit of its address space only protects
the machine from a defect.
"""

import subprocess
import sys

import pytest

from deployer.contract.base import json_records

LIMIT = 512 * 1024 * 1024

_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
def peak():  # of this process: getrusage counts that of its parent before exec as well
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM"))
%s
print("peak", peak())
"""


def peak(code, *argv):
    """Return the peak of memory of a process that runs ``code``, and what it printed before."""
    argv = [sys.executable, "-c", _CHILD % code] + [str(word) for word in argv]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    out, err = child.communicate()
    assert child.returncode == 0, err[-2000:]
    text, _, size = out.rpartition("peak ")
    return int(size), text


_PARSE = """
from deployer.contract.base import json_records as records
unit, count = sys.argv[1].encode().decode("unicode_escape").encode("latin-1"), int(sys.argv[2])
data = b"[" + b",".join([unit] * count) + b"]"
if b"%x" in unit:
    data = b"{" + b",".join(unit % number for number in range(count)) + b"}"
limit = records.memory(data)
assert limit < 60000000
before = peak()
records.parse(data, "it", limit=limit)
print(peak() - before, limit)
"""


@pytest.mark.parametrize(
    ("unit", "count"),
    [("{}", 100000), ("[[[[]]]]", 80000), ('"%x":0', 200000), ('"\\xc3\\xa91"', 200000)]
    + [
        pytest.param(*case, marks=pytest.mark.thorough)
        for case in [
            ("[]", 200000),
            ("1234", 400000),
            ("1.5", 400000),
            ('"ab"', 400000),
            ('{"a":{}}', 60000),
            ('"\\\\u1234"', 200000),
            ('{"kind":"header","offset":1234567,"sha256":"%s","size":512}' % ("a" * 64), 30000),
        ]
    ],
)
def test_the_memory_that_json_takes_is_known_before_it_is_parsed(unit, count):
    _, text = peak(_PARSE, unit, count)
    used, promised = map(int, text.split())
    assert used < promised * 1.2


def test_json_that_takes_too_much_is_refused_with_the_sizes():
    data = b"[" + b",".join([b"{}"] * 400000) + b"]"
    with pytest.raises(ValueError, match="it is too large: parsing its 1200001 bytes takes up to 146 MB of memory"):
        json_records.parse(data, "it", ValueError)


_ENDING = """
import hashlib, zlib
from deployer.contract.bundle import delta, sealed_file as sealed
from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle.sealed_file import Seal
data = b'{"a":[' + b"{}," * ((int(sys.argv[1]) - 20) // 3) + b"{}]}"
seal = Seal(0, len(data), hashlib.sha256(data).hexdigest())
packer = zlib.compressobj(1)
sent = packer.compress(sealed.manifest_block(data)) + packer.compress(sealed.tail(seal)) + packer.flush()
size = seal.end + sealed.TAIL
del data
try:
    delta.decompress(sent, delta.Ending(0, size))
except IntegrityError as error:
    print(len(sent), error.message)
"""


@pytest.mark.thorough
def test_a_small_ending_with_a_huge_manifest():
    size = 60 * 1024 * 1024
    used, text = peak(_ENDING, size)
    sent, _, message = text.partition(" ")
    assert int(sent) < size / 100
    assert "too large" in message
    assert used < LIMIT


_MANIFEST = """
import json
from deployer.contract.bundle import manifest
from deployer.contract.base import json_records as records
count = int(sys.argv[1])
segment = '{"kind":"%s","offset":%d,"sha256":"%064x","size":%d}'
pieces, offset = [], 0
for number in range(count):
    for kind, size in (("header", 512), ("data", 700), ("padding", 324)):
        pieces.append(segment % (kind, offset, hash((kind, number)) % 2**256, size))
        offset += size
members = ['{"mode":420,"name":"deployer/data/digits/train/%07d.png","size":700}' % number for number in range(count)]
image = {"config_digest": "", "layer_digest": "", "architecture": "amd64", "env": [], "workdir": "", "entrypoint": [],
         "cmd": [], "python": None, "raw_size": 0, "entries": 0, "holes": 0}
record = records.stamped("bundle", {"name": "digits", "version": "1", "codec": {"name": "zstd"}, "tools": {},
    "image": image, "changes": {}, "jobs": [], "needs": [], "mpi": [], "mount_points": []})
head = json.dumps(record)[:-1]
data = (head + ',"members":[' + ",".join(members) + '],"segments":[' + ",".join(pieces) + "]}").encode()
del pieces, members
print(len(data), records.memory(data))
before = peak()
found = manifest.read(data, "bundle.json")
assert len(found.members) == count and len(found.segments) == 3 * count
"""


@pytest.mark.thorough
def test_the_manifest_of_72000_data_files_is_read():
    used, text = peak(_MANIFEST, 72000)
    assert used < LIMIT, text


def test_the_manifest_of_7200_data_files_is_far_from_the_limit():
    used, text = peak(_MANIFEST, 7200)
    assert used < LIMIT / 4, text


_OUTPUT = """
from deployer.contract.base.errors import JobFailed
from deployer.system import process
try:
    process.run(["yes"], timeout=50)
except JobFailed as error:
    print(error.message)
"""


def test_a_program_that_never_stops_printing():
    used, text = peak(_OUTPUT)
    assert "yes printed more than 32 MiB" in text
    assert used < LIMIT


_INVENTORY = """
import os, zlib
from deployer.site.storage import inventory
packer = zlib.compressobj(9)
with open(os.path.join(sys.argv[1], inventory.LIST), "wb") as stream:
    for _ in range(100):
        stream.write(packer.compress(bytes(1024 * 1024)))
    stream.write(packer.flush())
assert inventory._read(sys.argv[1]) == []
"""


@pytest.mark.thorough
def test_a_list_of_files_that_is_a_bomb(tmp_path):
    used, _ = peak(_INVENTORY, tmp_path)
    assert used < LIMIT
