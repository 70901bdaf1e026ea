"""What the lab's internet serves to the published scripts of :mod:`tests.matrix.fetched`: data of the right form.

Everything is drawn with a seed; nothing is a copy of the real data, with two exceptions, which are made from what is at
hand: GPT-2's encoding, which tiktoken compares with known digests, is rebuilt from the package openai-whisper, and the
code of a metric comes from the clone of huggingface/evaluate.
"""

from __future__ import annotations

import base64
import calendar
import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import random
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.corpus import fetch
from tests.corpus.scripts import Source
from tests.lab.internet import Internet, nltk_data
from tests.lab.internet.github import archive

_EVALUATE = Source("huggingface/evaluate", "a7dd338386a4fae9a1767e05eb9ef9479513d9e8")
#: The names by which scripts know repositories of the hub that have moved.
_RENAMED = {
    "gpt2": "openai-community/gpt2",
    "bert-base-cased": "google-bert/bert-base-cased",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "distilbert-base-uncased": "distilbert/distilbert-base-uncased",
    "distilroberta-base": "distilbert/distilroberta-base",
    "wikitext": "Salesforce/wikitext",
    "glue": "nyu-mll/glue",
    "openwebtext": "Skylion007/openwebtext",
}
#: The SHA-256 that tiktoken demands.
_GPT2 = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
_GPT2_MODEL = ("checkpoint", "hparams.json", "model.ckpt.data-00000-of-00001", "model.ckpt.index", "model.ckpt.meta")
_WORDS = (  # noqa: SIM905 - words
    "the of and to in that it was for on with his they be at one have this from by hot but some what there we can out"
    " other were all your when up use word how said an each she which do their time if will way about many then them"
    " write like so these her long make thing see him two has look more day could go come did my sound no most"
).split()


def furnish(internet: Internet, tiny: Path, whisper: Path | None) -> None:
    """Fill the hosts.

    Args:
        tiny: what ``programs/tiny_hub.py`` made.
        whisper: the source archive of openai-whisper; without it, GPT-2's encoding is not served.
    """
    draw = random.Random(11)
    _hub(internet, tiny)
    if whisper is not None:
        host = internet.files("openaipublic.blob.core.windows.net")
        for name, body in gpt2_encoding(whisper).items():
            host.put(f"/gpt-2/encodings/main/{name}", body)
            host.put(f"/gpt-2/models/124M/{name}", body)
        for name in _GPT2_MODEL:
            host.put(f"/gpt-2/models/124M/{name}", draw.randbytes(20_000))
    _texts(internet, draw)
    _files(internet, draw)
    _tables(internet, draw)
    _openml(internet, draw)
    punkt = {"tokenizers/punkt_tab": {f"english/{name}": body for name, body in _punkt().items()}}
    internet.github.add("nltk/nltk_data", nltk_data(punkt), "gh-pages")


def _hub(internet: Internet, tiny: Path) -> None:
    for kind in ("model", "dataset"):
        for folder in sorted((tiny / f"{kind}s").glob("*/*")):
            internet.hub.add(f"{folder.parent.name}/{folder.name}", folder, kind)
    internet.hub.renamed.update(_RENAMED)
    with contextlib.suppress(LookupError):
        names = ("glue.py", "README.md", "requirements.txt", "app.py")
        files = {name: fetch.committed(_EVALUATE, f"metrics/glue/{name}") for name in names}
        internet.hub.add("evaluate-metric/glue", files, "space")
    stories = [{"story": _text(random.Random(number), 12)} for number in range(60)]
    body = _tar({f"data{part:02}.json": json.dumps(stories[part::3]).encode() for part in range(3)})
    internet.hub.add("roneneldan/TinyStories", {"TinyStories_all_data.tar.gz": body}, "dataset", "cdla-sharing-1.0")


def gpt2_encoding(whisper: Path) -> dict[str, bytes]:
    """Return ``vocab.bpe`` and ``encoder.json``, rebuilt from the ranks in the source archive of openai-whisper.

    Raises:
        ValueError: they are not what tiktoken demands.
    """
    with tarfile.open(whisper) as opened:
        name = next(each for each in opened.getnames() if each.endswith("/assets/gpt2.tiktoken"))
        stream = opened.extractfile(name)
        lines = stream.read().split(b"\n") if stream else []
    pairs = [line.split() for line in lines if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    signs = _signs()
    shown = {token: "".join(signs[byte] for byte in token) for token in ranks}
    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [_halves(token, ranks) for token in ordered if len(token) > 1]
    table = {shown[token]: ranks[token] for token in ordered}
    table["<|endoftext|>"] = len(table)
    made = {
        "vocab.bpe": "\n".join(["#version: 0.2", *(f"{shown[a]} {shown[b]}" for a, b in merges), ""]).encode(),
        "encoder.json": json.dumps(table).encode(),
    }
    for name, body in made.items():
        if hashlib.sha256(body).hexdigest() != _GPT2[name]:
            raise ValueError(f"{name} is not the one that tiktoken demands")
    return made


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens that were merged to this one: merge its bytes while a rank is smaller."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        every = [(ranks.get(a + b, len(ranks)), at) for at, (a, b) in enumerate(itertools.pairwise(parts))]
        _, at = min(every)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _signs() -> dict[int, str]:
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


# ---------------------------------------------------------------------------------------------------------- plain files
def _text(draw: random.Random, sentences: int) -> str:
    made = [" ".join(draw.choice(_WORDS) for _ in range(draw.randint(5, 14))).capitalize() for _ in range(sentences)]
    return ". ".join(made) + "."


def _texts(internet: Internet, draw: random.Random) -> None:
    github = internet.github
    play = "\n\n".join(f"{draw.choice(('KING', 'QUEEN', 'FOOL'))}:\n{_text(draw, 2)}" for _ in range(1500))
    github.add("karpathy/char-rnn", {"data/tinyshakespeare/input.txt": play.encode()}, "master")
    tasks = [{"instruction": _text(draw, 1), "input": "", "output": _text(draw, 1)} for _ in range(120)]
    book = {
        "ch02/01_main-chapter-code/the-verdict.txt": _text(draw, 300).encode(),
        "ch07/01_main-chapter-code/instruction-data.json": json.dumps(tasks).encode(),
    }
    github.add("rasbt/LLMs-from-scratch", book)
    choices = [
        {"ind": at, "ctx": _text(draw, 1), "endings": [_text(draw, 1) for _ in range(4)], "label": draw.randrange(4)}
        for at in range(40)
    ]
    hellaswag = "".join(json.dumps(choice) + "\n" for choice in choices).encode()
    github.add("rowanz/hellaswag", {"data/hellaswag_val.jsonl": hellaswag}, "master")
    words = " <eos>\n ".join(_text(draw, 1) for _ in range(15_500))
    github.add("pytorch/examples", {"word_language_model/data/wikitext-2/train.txt": words.encode()})


def _files(internet: Internet, draw: random.Random) -> None:
    lines = [f"{draw.choice(('ham', 'ham', 'spam'))}\t{_text(draw, 1)}" for _ in range(400)]
    body = archive({"SMSSpamCollection": "\n".join(lines).encode(), "readme": b"made for tests\n"})
    internet.files("archive.ics.uci.edu").put("/static/public/228/sms+spam+collection.zip", body)
    internet.files("linqs-data.soe.ucsc.edu").put("/public/lbc/cora.tgz", _cora(draw))
    reviews = {
        f"aclImdb/{part}/{mood}/{number}_{7 if mood == 'pos' else 2}.txt": _text(draw, 3).encode()
        for part in ("train", "test")
        for mood in ("pos", "neg")
        for number in range(12)
    }
    internet.files("ai.stanford.edu").put("/~amaas/data/sentiment/aclImdb_v1.tar.gz", _tar(reviews))
    titles = ("title", "abstract", "venue", "year")
    papers = [dict(zip(titles, (_text(draw, 1), _text(draw, 3), "EMNLP", "2018"), strict=True)) for _ in range(60)]
    internet.files("sbert.net").put("/datasets/emnlp2016-2018.json", json.dumps(papers).encode())
    asked = [(at, 2 * at, 2 * at + 1, _text(draw, 1), _text(draw, 1), 0) for at in range(200)]
    questions = _csv("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", asked, "\t")
    internet.files("qim.fs.quoracdn.net").put("/quora_duplicate_questions.tsv", questions)
    for name, count in (("train_5500", 700), ("TREC_10", 100)):
        kinds = [
            f"{draw.choice(('ABBR', 'DESC', 'ENTY', 'HUM', 'LOC', 'NUM'))}:x {_text(draw, 1)}\n" for _ in range(count)
        ]
        internet.files("cogcomp.seas.upenn.edu").put(f"/Data/QA/QC/{name}.label", "".join(kinds).encode())
    edges = "".join(f"{at} {draw.randrange(4039)}\n" for at in range(4039))
    path = "/data/facebook_combined.txt.gz"
    internet.files("snap.stanford.edu").put(path, gzip.compress(edges.encode(), mtime=0))


def _cora(draw: random.Random) -> bytes:
    """Return a citation network of the size of Cora."""
    topics = ("Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Theory")
    lines = []
    for paper in range(2708):
        words = [0] * 1433
        for _ in range(18):
            words[draw.randrange(1433)] = 1
        lines.append("\t".join(map(str, [paper, *words, topics[paper % len(topics)]])))
    cited = [f"{draw.randrange(2708)}\t{draw.randrange(2708)}" for _ in range(5429)]
    return _tar(
        {"cora/cora.content": "\n".join([*lines, ""]).encode(), "cora/cora.cites": "\n".join([*cited, ""]).encode()}
    )


def _tables(internet: Internet, draw: random.Random) -> None:
    github = internet.github
    months = calendar.month_name[1:]
    flights = [(year, month, draw.randint(100, 600)) for year in range(1949, 1961) for month in months]
    penguins = [
        (kind, "Dream", *(round(draw.uniform(30, 60), 1) for _ in range(3)), draw.randint(2700, 6300), sex)
        for kind in ("Adelie", "Chinstrap", "Gentoo")
        for sex in ("Male", "Female")
        for _ in range(20)
    ]
    days = ("Thur", "Fri", "Sat", "Sun")
    tips = [
        (round(draw.uniform(3, 50), 2), round(draw.uniform(1, 10), 2), "Male", "No", draw.choice(days), "Dinner", 2)
        for _ in range(100)
    ]
    columns = "species,island,bill_length_mm,bill_depth_mm,flipper_length_mm,body_mass_g,sex"
    seaborn = {
        "flights.csv": _csv("year,month,passengers", flights),
        "penguins.csv": _csv(columns, penguins),
        "tips.csv": _csv("total_bill,tip,sex,smoker,day,time,size", tips),
        "mpg.csv": _csv(
            "mpg,cylinders,displacement,horsepower,weight,acceleration,model_year,origin,name",
            [(draw.randint(9, 46), draw.choice((4, 6, 8)), 200, draw.randint(46, 230), draw.randint(1600, 5100), 15, 70,
              draw.choice(("usa", "europe", "japan")), "a car") for _ in range(200)],
        ),
        "planets.csv": _csv(
            "method,number,orbital_period,mass,distance,year",
            [("Transit", 1, draw.randint(1, 900), draw.random(), draw.randint(4, 8000), draw.randint(1995, 2014))
             for _ in range(200)],
        ),
        "titanic.csv": _csv(
            "survived,pclass,sex,age,fare,class,who,deck,embark_town,alive,alone",
            [(draw.randint(0, 1), 3, draw.choice(("male", "female")), draw.randint(1, 80), 7, "Third", "man", "B",
              "Cherbourg", "no", True) for _ in range(200)],
        ),
        "dataset_names.txt": b"flights\nmpg\npenguins\nplanets\ntips\ntitanic\n",
    }  # fmt: skip
    github.add("mwaskom/seaborn-data", seaborn, "master")
    regions = ("C", "E", "N", "S", "W")
    guerry = [
        (at, draw.randint(1, 86), draw.randint(12, 74), draw.randint(1, 86), draw.choice(regions)) for at in range(86)
    ]
    jobs = [
        (f"job {at}", draw.choice(("prof", "wc", "bc")), *(draw.randint(3, 97) for _ in range(3))) for at in range(45)
    ]
    names = ("minister", "conductor", "RR.engineer")
    jobs[:3] = [(name, "prof", *numbers[2:]) for name, numbers in zip(names, jobs, strict=False)]
    stays = [
        (
            at,
            draw.randint(1, 40),
            draw.randint(0, 1),
            draw.randint(0, 1),
            0,
            0,
            *draw.choice(((0, 0), (1, 0), (0, 1))),
            1,
        )
        for at in range(300)
    ]
    tables = {
        "HistData/Guerry": _csv("rownames,Lottery,Literacy,Wealth,Region", guerry),
        "carData/Duncan": _csv("rownames,type,income,education,prestige", jobs),
        "COUNT/medpar": _csv("rownames,los,hmo,white,died,age80,type2,type3,provnum", stays),
    }
    rdatasets = {f"csv/{name}.csv": body for name, body in tables.items()}
    index = [(*each.split("/"), "Made for tests", 1, 1) for each in tables]
    rdatasets["datasets.csv"] = _csv("Package,Item,Title,Rows,Cols", index)
    for package, name in (each.split("/") for each in tables):
        rdatasets[f"doc/{package}/rst/{name}.rst"] = b"Made for tests.\n"
        rdatasets[f"doc/{package}/{name}.html"] = b"<p>Made for tests.</p>\n"
    github.add("vincentarelbundock/Rdatasets", rdatasets, "master")
    pupils = [(at, draw.randint(1, 4), draw.randint(30, 70), draw.randint(30, 70)) for at in range(200)]
    internet.files("stats.idre.ucla.edu").put("/stat/data/hsb2.csv", _csv("id,race,read,write", pupils))
    players = ["FirstName", "LastName", "At-Bats", "Hits", "BattingAverage", "RemainingAt-Bats"]
    players += ["SeasonAt-Bats", "SeasonHits"]
    seasons = [("A", f"Player{at}", 45, draw.randint(8, 20), 0.3, 400, 445, draw.randint(90, 160)) for at in range(18)]
    admitted = [(at, "ABCDEF"[at // 2], ("male", "female")[at % 2], draw.randint(20, 99), 50, 200) for at in range(12)]
    pyro = {
        "EfronMorrisBB.txt": "\n".join("\t".join(map(str, row)) for row in [players, *seasons]).encode() + b"\n",
        "UCBadmit.csv": _csv("dept;applicant.gender;admit;reject;applications", admitted, ";"),
    }
    github.add("pyro-ppl/datasets", pyro, "master")


def _csv(head: str, rows: Iterable[Sequence[object]], between: str = ",") -> bytes:
    out = io.StringIO()
    out.write(head + "\n")
    csv.writer(out, delimiter=between, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _openml(internet: Internet, draw: random.Random) -> None:
    titanic = {
        "pclass": "NUMERIC", "survived": "{0,1}", "name": "STRING", "sex": "{female,male}", "age": "NUMERIC",
        "sibsp": "NUMERIC", "parch": "NUMERIC", "ticket": "STRING", "fare": "NUMERIC", "cabin": "STRING",
        "embarked": "{C,Q,S}", "boat": "STRING", "body": "NUMERIC", "home.dest": "STRING",
    }  # fmt: skip
    people = [
        (draw.randint(1, 3), draw.randint(0, 1), f"'P {at}'", draw.choice(("female", "male")), draw.randint(1, 80),
         0, 0, f"T{at}", round(draw.uniform(5, 90), 2), "?", draw.choice("CQS"), "?", "?", "?")
        for at in range(200)
    ]  # fmt: skip
    internet.openml.add("titanic", titanic, people, "survived", 40945)
    digits = {f"pixel{at}": "NUMERIC" for at in range(1, 785)} | {"class": "{0,1,2,3,4,5,6,7,8,9}"}
    images = [[*(draw.choice((0, 0, 0, 128, 255)) for _ in range(784)), at % 10] for at in range(300)]
    internet.openml.add("mnist_784", digits, images, "class", 554)
    _yeast(internet, draw)
    co2 = dict.fromkeys(("year", "month", "day", "weight", "flag", "station", "co2"), "NUMERIC")
    weeks = [
        (1958 + at // 12, at % 12 + 1, 15, 1, 0, 1, round(315 + at / 10 + draw.random(), 2)) for at in range(12 * 43)
    ]
    internet.openml.add("mauna-loa-atmospheric-co2", co2, weeks, "co2", 41187)


def _yeast(internet: Internet, draw: random.Random) -> None:
    yeast = {f"Att{at}": "NUMERIC" for at in range(1, 104)} | {f"Class{at}": "{FALSE,TRUE}" for at in range(1, 15)}
    genes = [
        [*(round(draw.gauss(0, 0.1), 4) for _ in range(103)), *(draw.choice(("FALSE", "TRUE")) for _ in range(14))]
        for _ in range(300)
    ]
    classes = ",".join(f"Class{at}" for at in range(1, 15))
    internet.openml.add("yeast", yeast, genes, classes, 40597, version=4)


def _punkt() -> dict[str, bytes]:
    """Return the four tables of a splitter of sentences that knows nothing."""
    return {
        "abbrev_types.txt": b"dr\nmr\n",
        "collocations.tab": b"",
        "ortho_context.tab": b"the\t46\n",
        "sent_starters.txt": b"the\n",
    }


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as made:
        for path, body in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(body)
            made.addfile(member, io.BytesIO(body))
    return out.getvalue()
