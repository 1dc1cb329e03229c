// The search page recognizes a pasted line of a log. Sphinx looks for words that a page holds, all of them, so a line with a date and numbers
// of its own finds nothing there. Here the patterns of `sparkbook diagnose` are tried first; where none fits, what shares the rarest words.
(() => {
  "use strict";

  const results = document.getElementById("search-results");
  const query = new URLSearchParams(location.search).get("q");
  if (!results || !query) return;

  const words = (text) => new Set(text.toLowerCase().match(/[a-z][a-z_]{3,}/g) ?? []);

  // Signatures whose pattern fits, those first whose further conditions are met too; in the order of the file, as `diagnose` goes.
  function fitting(signatures, text) {
    const found = { sure: [], maybe: [] };
    for (const signature of signatures) {
      const has = (pattern) => new RegExp(pattern, "i").test(text);
      if (!signature.pattern.some(has)) continue;
      found[signature.also.every(has) && !signature.unless.some(has) ? "sure" : "maybe"].push(signature);
    }
    return [...found.sure, ...found.maybe];
  }

  // Signatures whose example shares words with the text; a word counts the more, the fewer examples have it.
  function similar(signatures, text) {
    const mine = words(text);
    const theirs = signatures.map((signature) => words(`${signature.example} ${signature.title}`));
    const weight = (word) => 1 / (1 + theirs.filter((set) => set.has(word)).length);
    const scores = theirs.map((set) => [...mine].filter((word) => set.has(word)).reduce((sum, word) => sum + weight(word), 0));
    return signatures
      .map((signature, i) => ({ signature, score: scores[i] }))
      .filter(({ score }) => score > 0.4)
      .sort((a, b) => b.score - a.score)
      .slice(0, 3)
      .map(({ signature }) => signature);
  }

  function list(title, items) {
    const section = document.createElement("section");
    const head = document.createElement("h2");
    head.textContent = title;
    const entries = document.createElement("ul");
    for (const [text, address, more] of items) {
      const link = document.createElement("a");
      link.textContent = text;
      link.href = address;
      const entry = document.createElement("li");
      entry.append(link, more);
      entries.append(entry);
    }
    section.append(head, entries);
    return section;
  }

  function show({ signatures, flags }) {
    const found = fitting(signatures, query);
    const near = found.length || words(query).size < 3 ? [] : similar(signatures, query);
    const named = [...new Set(query.replaceAll("_", "-").match(/--[a-z][a-z0-9-]*[a-z0-9]/g) ?? [])].filter((flag) => flags.includes(flag.slice(2)));
    const place = document.createElement("div");
    place.id = "sb-recognized";
    const shown = (signature) => [`${signature.id}: ${signature.title}`, signature.address, ` ${signature.fix}`];
    if (found.length) place.append(list("Recognized in a log", found.slice(0, 5).map(shown)));
    if (near.length) place.append(list("Similar lines of a log", near.map(shown)));
    if (named.length) place.append(list("Flags", named.map((flag) => [flag, `flags/${flag.slice(2)}.html`, ""])));
    results.before(place);
  }

  const script = document.createElement("script");
  script.src = "_static/signatures.js";
  script.addEventListener("load", () => show(window.sparkbookSignatures));
  document.head.append(script);
})();
