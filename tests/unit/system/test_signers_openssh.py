"""Generated allowed_signers files against the real ssh-keygen: whoever we accept, it accepts under the same identity.

The other direction is free: we may refuse what ssh-keygen reads. A floor keeps the test from passing by that alone.
"""

import itertools
import random
import subprocess
import time
from multiprocessing.pool import ThreadPool

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import sshsig
from deployer.system.trust import signers
from tests.signing import TestKey

KEY, OTHER = TestKey(seed=1), TestKey("ecdsa-sha2-nistp256", seed=2)
MESSAGE = b"a manifest"
NOW, AT = 1782907200, "20260701120000Z"  # in summer, for the sake of daylight saving time
LINE = KEY.key.line
BLOB = LINE.split()[1]

#: Line ends and spaces of Unicode, of C and of Python, each of which hides a key in a comment if it ends a line.
STRANGE = ["\r", "\v", "\f", "\0", "\x1c", "\x1d", "\x1e", "\x1f", "\x7f", "\x85", "\xa0", "\u2028", "\u2029"]
STRANGE += ["\ufeff", "\u200b", "\u202e", "\u3000", "\\", '"', "'", ",", "=", "!", "*", "?", "#", "@", " ", "\t", ";"]

#: (what is signed for, the file), each of which both should accept.
ORDINARY = [
    "a@b " + LINE,
    "a@b " + LINE + ' comment, with \u00fc and "quotes"',
    "# ours: M\u00fcller\n\n \t a@b\t" + LINE.replace(" ", " \t "),
    '"spaced name" ' + LINE,
    "*@b " + LINE,
    "?@b,!c@b " + LINE,
    "a@b,c@d " + LINE + "\n" + OTHER.allowed("x@y"),
    "x@y " + OTHER.key.line + "\na@b " + LINE,
    'a@b namespaces="deployer-*,git" ' + LINE,
    'a@b NAMESPACES="?eployer-bundle" ' + LINE,
    'a@b namespaces="!git,*" ' + LINE,
    'a@b valid-after="20260101" ' + LINE,
    'a@b valid-after="202607011200Z",valid-before="20260701120001Z" ' + LINE,
    'a@b valid-after="20260701120000Z",namespaces="*" ' + LINE,
    'a@b valid-before="99991231" ' + LINE,
    'a@b valid-after="197101010000" ' + LINE,
    f"a@b cert-authority {LINE}\nb@c {LINE}",
]

#: Each read in another way by ssh-keygen than by a careless parser; none may be accepted.
HOSTILE = [f"# comment{character}a@b {LINE}" for character in STRANGE if character not in "\\ \t"]
HOSTILE += [f"{who} {LINE}" for who in ('""', "@", "!a@b", "!*", "*,!*", "a@b,!a@b", ",", "", "a\u00a0", 'a"b c"')]
HOSTILE += [
    f'a@b valid-before="{day}" {LINE}'
    for day in (
        "19600101",
        "19700101",
        "19700101Z",
        "19691231235959Z",
        "20260701115959Z",
        "202607011159Z",
        "20260701",
        "2026",
        "20261301",
        "20260230Z",
        "202607012460Z",
        "2026070112",
        "20260701 1200",
        "+2260701",
        "20260701z",
        "20260701UTC",
        "202607011359",
        "202607011300",
        "\u0662\u0660\u0662\u0667\u0660\u0661\u0660\u0661",
        "-20270101",
        " 20270101",
    )
]
HOSTILE += [
    f'a@b valid-after="{day}" {LINE}'
    for day in (
        "19600101",
        "19700101",
        "20260702",
        "20260701120001Z",
        "202607011401",
        "202607011400",
        "",
        "99999999",
        "now",
    )
]
HOSTILE += [
    f"a@b {options} {LINE}"
    for options in (
        "cert-authority",
        'namespaces="deployer-bundle",',
        ',namespaces="deployer-bundle"',
        'namespaces="git"',
        "unknown",
        'namespaces="*",namespaces="*"',
        "namespaces",
        'namespaces=""',
        'namespaces="git',
        "namespaces=*",
        "no-pty",
        'namespaces="deployer\\"-bundle"',
        'namespaces="*" valid-after="20250101"',
        'cert-authority="x"',
        '"namespaces"',
        'valid-after="20270101",valid-before="20260101"',
        'namespaces="!deployer-bundle,*"',
        'namespaces="deployer"',
        'valid-after="20260101",valid-before="20260101"',
        "verify-required",
        'namespaces = "*"',
        '""',
        'namespaces="*"x',
    )
]
HOSTILE += [
    "", "a@b", LINE, "a@b ssh-ed25519", "a@b ssh-rsa " + BLOB, "a@b ssh-ed25519 " + BLOB[:-4], "a@b " + BLOB,
    "a@b ssh-ed25519 " + BLOB + "AAAA", f"a@b ssh-ed25519 {BLOB}=", "a@b ED25519 " + BLOB, "a@b\n " + LINE,
    "a@b ssh-ed25519 " + BLOB[:20] + " " + BLOB[20:], "a@b\\\n" + LINE, "\ufeffa@b " + LINE, "a@b\u00a0" + LINE,
    "a@b ssh-ed25519\u00a0" + BLOB, f"a@b {LINE}\r", f"a@b {LINE}\0", "{} {}".format("a" * 1100, LINE),
    "a@b cert-authority " + LINE + "\nb@c " + OTHER.key.line, "a@b ssh-ed25519-cert-v01@openssh.com " + BLOB,
]  # fmt: skip


def altered(chance):
    """Yield ordinary files with one to three changes at random places, forever."""
    plain = [
        "a",
        "b,",
        "*",
        "?",
        "@b",
        "-",
        "0",
        " ",
        "  ",
        "\t",
        ",",
        "a@b",
        "\n",
        "\n# ",
        '"',
        LINE,
        "!a@b,",
        "Z",
        "=",
        ".",
    ]
    while True:
        text = chance.choice(ORDINARY)
        strange = chance.random() < 0.3
        for _ in range(chance.randint(1, 3)):
            # Mostly before the key and after it: there is more to get wrong.
            key = text.find(LINE)
            at = chance.choice((chance.randint(0, max(key, 0)), key + len(LINE), chance.randint(0, len(text))))
            size = chance.choice((0, 0, 0, 0, 1, 2))
            text = text[:at] + chance.choice(STRANGE if strange else plain) + text[at + size :]
        yield text


def composed(chance):
    """Yield files of one to three lines, made of parts that are right three times out of four, forever."""
    days = ["20260101", "20260701", "202607011159", "20260701120000", "202607011359", "20270101", "19600101", "1970"]
    names = ["deployer-bundle", "deployer-*", "*", "git", "!git", "", "a b", "?" * 15, "DEPLOYER-BUNDLE"]

    def some(right, wrong):
        return chance.choice(right) if chance.random() < 0.9 else chance.choice(wrong)

    def who():
        return ",".join(
            some(["a@b", "*", "a?b", "*@b", "c"], ["!a@b", "!*", "", "@c", "\xe4"]) for _ in range(chance.randint(1, 2))
        )

    def options():
        name = some(["namespaces", "valid-after", "valid-before", "Valid-Before"], ["cert-authority", "other"])
        value = (
            ",".join(chance.sample(names, 2))
            if name == "namespaces"
            else chance.choice(days) + some(["", "Z"], STRANGE)
        )
        return (
            some(['%s="%s"', '%s="%s"', '%s="%s"'], ["%s=%s", "%s", '%s="%s', '%s:"%s"'])
            .replace("%s", name, 1)
            .replace("%s", value)
        )

    while True:
        lines = []
        for _ in range(chance.randint(1, 3)):
            words = [some(["%s", '"%s"', "%s"], ['%s"', "'%s'"]).replace("%s", who())]
            words += [
                some([","], [" ", ",,", ";"]).join(options() for _ in range(chance.choice((1, 1, 2))))
            ] * chance.randint(0, 1)
            words += chance.choice((LINE, LINE, OTHER.key.line)).split()
            words.append(chance.choice(["", "c", "\xe9 #"]))
            lines.append(some(["", "", " ", "# "], STRANGE) + some([" ", "\t", "  "], STRANGE).join(words))
        yield some(["\n", "\n\n"], STRANGE).join(lines)


@pytest.fixture
def zone(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def verify(tmp_path, zone):
    """Return what asks both: ours for a name or "", then ssh-keygen for that name: True, or None if not asked."""
    signature = tmp_path / "signature"
    signature.write_text(sshsig.armored(KEY.sign(MESSAGE)))
    numbers = itertools.count()

    def both(text):
        path = tmp_path / str(next(numbers))
        path.write_bytes(text.encode("utf-8"))
        who = accepted_as(str(path))
        return who, who and by_ssh_keygen(str(path), who)

    def by_ssh_keygen(path, who):
        argv = ["ssh-keygen", "-Y", "verify", "-f", path, "-I", who, "-n", sshsig.NAMESPACE, "-s", str(signature)]
        argv += ["-O", "verify-time=" + AT]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process.communicate(MESSAGE)
        return process.returncode == 0

    return both


def accepted_as(path):
    try:
        found = signers.read_signers(path)
    except UsageError:
        return ""
    names = [signer.who for signer in found if signer.key == KEY.key and not signer.refusal(NOW)]
    first = names[0].strip('"').split(",") if names else [""]
    wanted = [pattern for pattern in first if not pattern.startswith("!")]
    return wanted[0].replace("*", "any").replace("?", "a") if wanted else "nobody"


@pytest.mark.needs("ssh-keygen")
@pytest.mark.parametrize("count", [60, pytest.param(700, marks=pytest.mark.thorough)])
def test_whom_we_accept_ssh_keygen_accepts(verify, count):
    chance = random.Random(6)
    generated = [next(source) for source in (altered(chance), composed(chance)) for _ in range(count // 2)]
    files = ORDINARY + HOSTILE + generated
    with ThreadPool(4) as pool:
        answers = pool.map(verify, files, chunksize=16)
    assert [(text, who) for text, (who, theirs) in zip(files, answers) if who and not theirs] == []
    ours = [bool(who) for who, _ in answers]
    assert [text for text, accepted in zip(ORDINARY, ours) if not accepted] == []
    assert [text for text, accepted in zip(HOSTILE, ours[len(ORDINARY) :]) if accepted] == []
    # Many of the altered files are ordinary still: a comment is longer, a name is another.
    assert count / 10 < sum(ours[-count:]) < count / 2
