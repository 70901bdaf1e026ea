"""What every page of ours must be: one file without scripts or remote content, with tables and pictures for all."""

from html.parser import HTMLParser

#: What a name from an image or a job may look like.
HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)> </style>\x1b]0;x\x07 & \u202e"
_VOID = {"meta"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_REMOTE = ("src", "href", "srcset", "data", "action", "background", "poster", "xlink:href", "style")


class Page(HTMLParser):
    """A page that was read; reading fails for what a page must not have.

    Attributes:
        text: all its text.
        tags: the names of its elements.
        labels: the text alternatives of its pictures.
        ids: the names of its parts.
        links: the parts that it refers to.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self._level = 0
        self._open: list[str] = []
        assert text.startswith("<!DOCTYPE html>\n")
        self.feed(text)
        self.close()
        assert self._open == []
        assert self.tags.count("h1") == self.tags.count("main") == self.tags.count("title") == 1
        assert self.tags.count("header") == self.tags.count("nav") == 1
        assert {link.lstrip("#") for link in self.links} <= {*self.ids}
        assert all(link.startswith("#") for link in self.links)
        assert self.tags.count("table") == self.tags.count("caption")
        assert self.tags.count("svg") == len(self.labels)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        assert tag not in ("script", "iframe", "object", "embed", "link", "base", "form", "img")
        if tag == "a":  # to a section of the page itself
            self.links.append(str(values.pop("href")))
        assert not [name for name in values if name.startswith("on") or name in _REMOTE]
        if "id" in values:
            assert values["id"] not in self.ids
            self.ids.append(str(values["id"]))
        if tag == "section":
            self.links.append(f"#{values['aria-labelledby']}")
        if tag in _HEADINGS:
            assert int(tag[1]) <= self._level + 1, "a level of headings is left out"
            self._level = int(tag[1])
        if tag == "html":
            assert values["lang"] == "en"
        if tag == "th":
            assert values["scope"] in ("row", "col")
        if tag == "svg":
            assert values["role"] == "img"
            self.labels.append(values["aria-label"] or "")
            assert self.labels[-1]
        if tag == "meta" and "http-equiv" in values:
            assert (values["content"] or "").startswith("default-src 'none'; ")
        self.tags.append(tag)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
        else:
            self.text += data
