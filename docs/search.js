// Search without a server. From a folder, browsers load scripts but no other files, so the index is a script too.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const results = document.getElementById("mkdocs-search-results");
  if (!results) return; // all pages but search.html
  const asked = (new URLSearchParams(location.search).get("q") || "").trim();
  document.getElementById("mkdocs-search-query").value = asked;
  const index = document.createElement("script");
  index.src = "search/search_index.js";
  index.onload = () => show(results, find(window.searchIndex, asked));
  document.head.append(index);
});

// Sections that have all words, those with more of them in the heading first.
function find(sections, asked) {
  const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const section of words.length ? sections : []) {
    const title = section.title.toLowerCase(), text = section.text.toLowerCase();
    if (words.every((word) => title.includes(word) || text.includes(word))) {
      found.push({ ...section, rank: words.filter((word) => title.includes(word)).length, at: text.indexOf(words[0]) });
    }
  }
  return found.sort((a, b) => b.rank - a.rank).slice(0, 50);
}

function show(results, found) {
  results.textContent = found.length ? "" : results.dataset.noResultsText;
  for (const section of found) {
    const link = document.createElement("a"), head = document.createElement("h3"), text = document.createElement("p");
    link.href = section.location;
    link.textContent = section.title;
    head.append(link);
    const start = Math.max(0, section.at - 80);
    text.textContent = (start ? "... " : "") + section.text.slice(start, start + 240);
    results.append(head, text);
  }
}
