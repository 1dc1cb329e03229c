// The search page recognizes a pasted line of a log. Sphinx looks for words that a page holds, all of them, so a line with a date and numbers
// of its own finds nothing there. Here the patterns of `sparkbook diagnose` are tried first; where none fits, what shares the rarest words.
(() => {
  "use strict";

  const results = document.getElementById("search-results");
  // Some patterns take time that grows with the square of a text: no line that one would paste is longer.
  const query = new URLSearchParams(location.search).get("q")?.slice(0, 2000);
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

  // Questions that share at least half of the words asked for; a word counts the more, the fewer questions have it.
  const SMALL = new Set("an and any are at be can do does for from has have how in is it my no not of on or the there to what when which why with".split(" "));
  function alike(questions) {
    const split = (text) => [...new Set(text.toLowerCase().match(/[a-z0-9][a-z0-9.]*[a-z0-9]/g) ?? [])].filter((word) => !SMALL.has(word));
    const theirs = questions.map(([question, , more]) => split(`${question} ${more}`));
    const has = (set, word) => set.some((one) => one === word || (word.length > 3 && one.startsWith(word)));
    const mine = split(query).map((word) => ({ word, weight: 1 / (1 + theirs.filter((set) => has(set, word)).length) }));
    const sum = (words) => words.reduce((total, { weight }) => total + weight, 0);
    return questions
      .map((question, i) => ({ question, score: sum(mine.filter(({ word }) => has(theirs[i], word))) }))
      .filter(({ score }) => score > 0 && score >= sum(mine) / 2)
      .sort((a, b) => b.score - a.score)
      .slice(0, 3)
      .map(({ question: [text, address] }) => [text, address, ""]);
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

  // Flags that the query names: `--max-model-len`, `max_model_len`; a name of one word only with its dashes, or where it is all that was typed.
  function flagsNamed(flags) {
    const alone = query.trim().split(/\s+/).length === 1;
    const found = (query.match(/-{0,2}[a-zA-Z][\w-]*/g) ?? []).flatMap((word) => {
      const name = word.replace(/^-+/, "").replaceAll("_", "-").toLowerCase();
      const sure = word.startsWith("--") || name.includes("-") || alone;
      return sure ? [name, name.replace(/^no-/, "")].filter((one) => flags.includes(one)) : [];
    });
    return [...new Set(found)];
  }

  // Rules whose code stands in the query.
  const codesNamed = (codes) =>
    [...new Set(query.toUpperCase().match(/\b[A-Z]{2,6}\d{3}\b/g) ?? [])].filter((code) => code in codes);

  // What holds every word of a short query; of a line of a log nothing does.
  function holding(items, text) {
    const wanted = query.toLowerCase().split(/[\s,]+/).filter((word) => word.length > 1);
    const letters = wanted.join("").length;
    const begins = (where, word) => where.startsWith(word) || [" ", "-", "/", "_", "(", '"', "'"].some((before) => where.includes(before + word));
    return letters < 3 || wanted.length > 6 ? [] : items.filter((item) => wanted.every((word) => begins(text(item).toLowerCase(), word)));
  }

  // Pages with a heading that holds the words: [title, address, headings]; the more words of the heading are asked for, the sooner.
  function headed(pages) {
    return pages
      .map(([title, address, headings]) => {
        const hits = holding([title, ...headings], (text) => text).sort((a, b) => (b === title) - (a === title) || a.length - b.length);
        return { title, address, hit: hits[0], best: hits[0] === title ? 0 : hits[0]?.length };
      })
      .filter(({ hit }) => hit)
      .sort((a, b) => a.best - b.best)
      .map(({ title, address, hit }) => [title, address, hit === title ? "" : `: ${hit}`]);
  }

  function show({ signatures, flags, codes, recipes, models: known, questions, pages }) {
    const found = fitting(signatures, query);
    const titled = holding(signatures, (one) => `${one.title} ${one.example}`).filter((one) => !found.includes(one));
    const of = holding(known, ([title, , names]) => `${title} ${names}`);
    const models = holding(recipes, ([title, , names]) => `${title} ${names}`);
    const read = headed(pages);
    const near = found.length || titled.length || models.length || read.length || words(query).size < 3 ? [] : similar(signatures, query);
    const place = document.createElement("div");
    place.id = "sb-recognized";
    const add = (title, items) => items.length && place.append(list(title, items));
    const shown = (signature) => [`${signature.id}: ${signature.title}`, signature.address, ` ${signature.fix}`];
    add("Rules", codesNamed(codes).map((code) => [`${code}: ${codes[code][0]}`, codes[code][1], ""]));
    add("Recognized in a log", found.slice(0, 5).map(shown));
    add("Models", of.slice(0, 5).map(([title, address]) => [title, address, ""]));
    add("Flags", flagsNamed(flags).map((flag) => [`--${flag}`, `flags/${flag}.html`, ""]));
    add("Recipes", models.slice(0, 8).map(([title, address]) => [title, address, ""]));
    add("Questions", alike(questions));
    add("Chapters and pages", read.slice(0, 6));
    add("Faults in a log", titled.slice(0, 5).map(shown));
    add("Similar lines of a log", near.map(shown));
    results.before(place);
  }

  const script = document.createElement("script");
  script.src = "_static/signatures.js";
  script.addEventListener("load", () => show(window.sparkbookSignatures));
  document.head.append(script);
})();
