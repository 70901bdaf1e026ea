"""A small internet on this machine, for the real libraries that download: :class:`Internet`.

A proxy leads every host name to a handler here, with certificates of the lab's own CA. The libraries are not changed:
they find the proxy and the CA through the usual variables.

    with Internet(folder) as internet:
        internet.hub.add("lab/tiny", {"config.json": b"{}"})
        internet.files("data.example.org").put("/a.csv", b"x,y\\n")
        subprocess.run(command, env={**os.environ, **internet.environment})
    print(internet.requests)

What it serves is made by the tests. Data whose checksum a library has in its source cannot be served: torchvision's and
Keras' data sets, the encodings of tiktoken, scikit-learn's ``fetch_california_housing`` and ``fetch_20newsgroups``,
``scipy.datasets``, and everything of TensorFlow Datasets.
"""

from tests.lab.internet.answers import Answer, Request
from tests.lab.internet.files import Fault, FileHost
from tests.lab.internet.github import GitHub, nltk_data
from tests.lab.internet.hub import Hub, Repository
from tests.lab.internet.openml import OpenML
from tests.lab.internet.proxy import Internet, Seen
from tests.lab.internet.tiny import tiny_gpt2, tiny_weights

__all__ = [
    "Answer",
    "Fault",
    "FileHost",
    "GitHub",
    "Hub",
    "Internet",
    "OpenML",
    "Repository",
    "Request",
    "Seen",
    "nltk_data",
    "tiny_gpt2",
    "tiny_weights",
]
