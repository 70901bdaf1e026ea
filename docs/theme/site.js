// Search without a server, and small comforts. From a folder, browsers load scripts but no other files, so the index of
// the search is a script too. Without scripts the pages are whole, only the search is missing.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const query = document.getElementById("query");
  fold();
  document.querySelectorAll("pre").forEach(copyable);
  const list = document.querySelector(".pages"), current = list.querySelector("[aria-current]");
  if (current) list.scrollTop = current.offsetTop - list.clientHeight / 2;
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && document.activeElement !== query) {
      event.preventDefault();
      query.focus();
    }
  });
  if (document.getElementById("results")) search(query);
});

// On a narrow screen the lists of pages and sections are closed: they would be longer than the text.
function fold() {
  for (const [list, width] of [[".pages", "56rem"], [".sections", "80rem"]]) {
    const lines = document.querySelector(`${list} > details`);
    if (lines) lines.open = matchMedia(`(min-width: ${width})`).matches;
  }
}

// A button that copies a block: of a session only what a person types, without prompts and outputs.
function copyable(block) {
  const typed = [...block.querySelectorAll(".typed")].map((line) => line.textContent);
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.title = typed.length ? "Copy the commands" : "Copy the block";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText((typed.length ? typed.join("\n") : block.querySelector("code").textContent).trimEnd() + "\n");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.parentElement.append(button);
}

function search(query) {
  query.value = (new URLSearchParams(location.search).get("q") || "").trim();
  const index = document.createElement("script");
  index.src = "search/search_index.js";
  index.onload = () => {
    const answer = () => show(query.value.toLowerCase().split(/\s+/).filter(Boolean));
    query.addEventListener("input", answer);
    answer();
  };
  document.head.append(index);
}

// Sections that have all words, those with more of them in the heading first.
function find(words) {
  const found = [];
  for (const section of words.length ? window.searchIndex : []) {
    const title = section.title.toLowerCase(), text = section.text.toLowerCase();
    if (words.every((word) => title.includes(word) || text.includes(word))) {
      found.push({ ...section, rank: words.filter((word) => title.includes(word)).length, at: text.indexOf(words[0]) });
    }
  }
  // The index has each page as a whole, too: that is listed only if none of its sections has all words.
  const sectioned = new Set(found.filter(({ location }) => location.includes("#")).map(pageOf));
  return found.filter((one) => one.location.includes("#") || !sectioned.has(pageOf(one))).sort((a, b) => b.rank - a.rank);
}

function pageOf(section) {
  return section.location.split("#")[0];
}

function show(words) {
  const results = document.getElementById("results"), count = document.getElementById("count"), found = find(words);
  const most = 50, number = found.length === 1 ? "1 section has" : `${found.length} sections have`;
  count.textContent = !words.length ? "Type words into the field at the top." : !found.length ? "No results found."
    : `${number} all words${found.length > most ? `; the first ${most}:` : ":"}`;
  const pages = new Map(window.searchIndex.map((section) => [section.location, section.title]));
  results.replaceChildren(...found.slice(0, most).map((section) => {
    const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
    const page = pages.get(pageOf(section));
    link.href = section.location;
    link.textContent = page && page !== section.title ? `${page}: ${section.title}` : section.title;
    const start = Math.max(0, section.at - 80);
    text.append(...marked((start ? "... " : "") + section.text.slice(start, start + 240), words));
    item.append(link, text);
    return item;
  }));
}

// The pieces of a text, with the words marked.
function marked(text, words) {
  const pattern = new RegExp(`(${words.map((word) => word.replace(/[^\w\s]/g, "\\$&")).join("|")})`, "i");
  return text.split(pattern).map((piece, number) => {
    if (number % 2 === 0) return piece;
    const mark = document.createElement("mark");
    mark.textContent = piece;
    return mark;
  });
}
