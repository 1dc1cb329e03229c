// The start page's chooser: shows what the page's own data says of a recipe, a use and a memory. Every answer was worked out when the site
// was assembled (sparkbook.site.chooser); nothing is computed here. Without this script the page has a table of all recipes.
(() => {
  "use strict";

  const KEY = "export VLLM_API_KEY=$(openssl rand -hex 32)   # makes the key; clients need it";

  const make = (tag, content = [], attributes = {}) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...[content].flat());
    return element;
  };
  const figure = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2))));
  const tokens = (value) => value.toLocaleString("en");
  const link = (text, href) => make("a", text, { href });

  // `code` in backticks, as the library's texts have it.
  const prose = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", part) : part));

  const listed = (items, kind) => make("ul", items, { class: kind });
  const folded = (title, content) => make("details", [make("summary", title), ...[content].flat()]);

  function field(name, title, control) {
    control.id = `sb-choose-${name}`;
    return make("div", [make("label", title, { for: control.id }), control], { class: "sb-choose-field" });
  }

  function remark(data, number) {
    const [severity, message, fix, rule, why] = data.findings[number];
    return make("li", [make("strong", severity), " ", link(rule, "../" + why), ": ", ...prose(message), ...(fix ? [" ", make("em", ["→ ", ...prose(fix)])] : [])], {
      class: `finding finding-${severity}`,
    });
  }

  // A reason that begins with a rule's code leads to the rule.
  function reason(data, text) {
    const code = text.match(/^[A-Z]{2,6}\d{3}(?=: )/)?.[0];
    const rule = code && data.findings.find((one) => one[3] === code);
    return rule ? [link(code, "../" + rule[4]), ...prose(text.slice(code.length))] : prose(text);
  }

  const published = (recipe) => recipe.published;
  const estimate = (data, answer) => data.speeds[answer.speed][0];
  const answerOf = (data, recipe, choice) => data.answers[recipe.answers[choice.use][choice.memory]];

  function speeds(data, recipe, answer) {
    const known = published(recipe);
    const without = recipe.drafted && answer.changed.some(([text]) => text === "without --speculative-config");
    const rows = known
      ? [["Speed, published", [`${figure(known.tok_s)} tok/s, one request${known.prompt ? `, prompts of ${tokens(known.prompt)} tokens` : ""}${without ? ", with the draft" : ""} (`,
          known.url ? link(known.source, known.url) : known.source, `${known.date ? `, ${known.date}` : ""})`]]]
      : [];
    for (const [requests, low, middle, high] of data.speeds[answer.speed]) {
      if (requests > 1 && requests > Math.max(4, answer.sequences)) continue;
      rows.push([requests === 1 ? "Speed, one request" : `Speed, ${requests} requests`,
        `${figure(middle)} tok/s${requests === 1 ? ` with ${tokens(answer.behind)} tokens of context` : " together"} (estimate; range ${figure(low)} to ${figure(high)})`]);
    }
    return rows.length ? rows : [["Speed", "no estimate: the sources do not give all the sizes that a decode step reads"]];
  }

  function waits(answer) {
    if (!answer.wait?.length) return [];
    const said = ([, , low, middle, high]) => `${figure(middle)} s (estimate; range ${figure(low)} to ${figure(high)})`;
    const [cold, warm] = answer.wait;
    return [
      [`Wait for a prompt of ${tokens(cold[0])} tokens`, said(cold)],
      [answer.cache ? "Prefix cache" : `The same, ${tokens(warm[1])} of them in the prefix cache`, answer.cache ? `none: ${answer.cache}` : said(warm)],
    ];
  }

  function facts(data, recipe, answer) {
    const fits = answer.verdict === "fits" ? "fits" : "may fit: its sizes are only known in bounds, so watch the first start";
    return [
      ["On a Spark", `${fits} (${tokens(answer.context)} tokens for each of ${answer.sequences} requests at once)`],
      ...speeds(data, recipe, answer),
      ...waits(answer),
      ["KV cache", answer.kv ? `${tokens(answer.kv[0])} to ${tokens(answer.kv[1])} tokens` : "not known"],
      ...(recipe.weights ? [["Weights", `${figure(recipe.weights)} GB to download once`]] : []),
      ...(recipe.nodes > 1 ? [["Sparks", String(recipe.nodes)]] : []),
      ["Model by", recipe.publisher || "not stated"],
      ["Recipe by", `${recipe.by}${recipe.date ? `, ${recipe.date}` : ""}`],
      ["Image", recipe.pinned ? "pinned by digest" : "no source gives its digest"],
    ];
  }

  function copyable(text, id) {
    const pre = make("pre", text, { tabindex: "0", id });
    const copy = make("button", "Copy the line", { type: "button", class: "sb-choose-copy" });
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(pre);
        copy.textContent = "Selected: press Ctrl+C";
      }
    });
    return make("div", [pre, copy], { class: "sb-choose-launch" });
  }

  function steps(recipe, answer) {
    const fraction = answer.changed.find(([text]) => text.startsWith("--gpu-memory-utilization"))?.[0];
    const code = (text) => make("code", text);
    const paragraph = (content) => make("p", content, { class: "sb-choose-same" });
    const before = ["First ", code(`sparkbook check ${recipe.id}`), " and ", code(`sparkbook weights fetch ${recipe.id}`)];
    if (recipe.nodes > 1)
      return paragraph([...before, `. The line is for ${recipe.nodes} Sparks: `, code(`sparkbook cluster serve pair.yaml ${recipe.id}`),
        " adds each one's rank and addresses", answer.changed.length ? "; make the changes above in a copy of the recipe." : "."]);
    const only = answer.changed.length - (fraction ? 1 : 0) === 0;
    return paragraph([...before, ", then run the line, or ",
      only ? code(`sparkbook serve ${recipe.id}${fraction ? ` ${fraction}` : ""}`) : [code("sparkbook serve"), " with the line in quotes"],
      ", which makes the key, waits until the server answers, and guards the start."].flat());
  }

  function answerTo(data, choice) {
    const recipe = data.recipes[choice.recipe];
    const title = make("p", [link(recipe.title, `../${recipe.page}`), `: ${recipe.summary}`]);
    const answer = answerOf(data, recipe, choice);
    if ("no" in answer)
      return [title, make("p", ["Not offered for this use and memory: ", ...reason(data, data.reasons[answer.no]), "."], { class: "sb-choose-no" })];
    const by = data.recommended[recipe.id];
    const grave = answer.said.filter((n) => data.findings[n][0] !== "info" || data.findings[n][3].startsWith("BAD"));
    const notes = answer.said.filter((n) => !grave.includes(n));
    const line = `${KEY}\n${answer.line.map((n) => data.lines[n]).join("\n")}`;
    const verdict = answer.verdict.replaceAll(" ", "-");
    return [
      title,
      ...(by ? [make("p", [make("strong", `Recommended by ${by[0]}`), `: ${by[1]} (`, link(by[3], by[2]), ")",
        grave.length ? "." : "; no rule of this book has a warning for the line."], { class: "sb-choose-why" })] : []),
      make("div", [
        make("table", make("tbody", facts(data, recipe, answer).map(([name, value]) => make("tr", [make("th", name, { scope: "row" }), make("td", value)]))), {
          class: `table sb-facts sb-verdict-${verdict}` }),
        copyable(line, "sb-choose-line"),
      ], { class: "sb-choose-columns" }),
      make("p", answer.changed.length ? "Changed in the recipe's line:" : "The line is the recipe's, unchanged.", { class: "sb-choose-count" }),
      listed(answer.changed.map(([text, own, why]) => make("li", [make("code", text), ...(own ? [" (", make("code", own), " in the recipe)"] : []), ": ", ...reason(data, data.reasons[why])])), "sb-choose-changed"),
      make("p", grave.length ? `Errors, warnings and known-bad combinations: ${grave.length}` : "No warnings, no known-bad combination", { class: "sb-choose-count" }),
      listed(grave.map((n) => remark(data, n)), "sb-choose-said"),
      listed(recipe.remarks.map(([level, text, url]) => make("li", [make("strong", level), " from the source: ", ...prose(text), ...(url ? [" ", link("source", url)] : [])])), "sb-choose-said"),
      ...(notes.length ? [folded(`${notes.length} more notes`, listed(notes.map((n) => remark(data, n)), "sb-choose-said"))] : []),
      steps(recipe, answer),
    ];
  }

  const COLUMNS = ["Recipe", "Sparks", "Tools", "Vision", "Context", "tok/s, published", "tok/s, estimate", "Model by", "Recipe by", "Date", "Warnings"];

  function row(data, number, choice, take) {
    const recipe = data.recipes[number];
    const answer = answerOf(data, recipe, choice);
    const rate = estimate(data, answer);
    const button = make("button", recipe.title, { type: "button" });
    button.addEventListener("click", () => take(number));
    const cells = [
      recipe.nodes, ...["tools", "vision"].map((one) => (recipe.able.includes(one) ? "yes" : "–")), tokens(answer.context),
      published(recipe) ? figure(published(recipe).tok_s) : "–", rate ? `${figure(rate[2])} (${figure(rate[1])} to ${figure(rate[3])})` : "–",
      recipe.publisher || "–", recipe.by, recipe.date || "–",
      answer.said.filter((n) => data.findings[n][0] !== "info" || data.findings[n][3].startsWith("BAD")).map((n) => data.findings[n][3]).join(" ") || "none",
    ];
    return make("tr", [make("th", button, { scope: "row" }), ...cells.map((cell) => make("td", String(cell)))], number === choice.recipe ? { "aria-current": "true" } : {});
  }

  // The best recipe of each model; with words to look for, every recipe that has them all.
  function rows(data, choice, words) {
    const order = data.order[choice.use][choice.memory];
    const text = (recipe) => `${recipe.title} ${recipe.id} ${recipe.publisher} ${recipe.by} ${recipe.able.join(" ")}`.toLowerCase();
    if (words.length) return order.filter((i) => words.every((word) => text(data.recipes[i]).includes(word)));
    const seen = new Set();
    return order.filter((i) => !seen.has(data.recipes[i].model) && seen.add(data.recipes[i].model));
  }

  function start() {
    const place = document.getElementById("sb-chooser");
    const source = document.getElementById("sb-chooser-data");
    if (!place || !source) return;
    const data = JSON.parse(source.textContent);
    const options = (choices) => choices.map((one, i) => make("option", one.title, { value: i }));
    const [use, memory, model] = [make("select", options(data.uses)), make("select", options(data.memories)), make("select")];
    const search = make("input", [], { type: "search", placeholder: "model, publisher, tools, vision" });
    const shown = make("div", [], { id: "sb-choose-answer", role: "region", "aria-label": "Answer", "aria-live": "polite" });
    const list = make("tbody");
    const others = make("div");
    const choice = { recipe: Math.max(data.recipes.findIndex((one) => one.id === place.dataset.first), 0), use: 0, memory: 0 };

    // Choosing a use or a memory keeps the recipe if it is offered there, and else takes the best.
    function offer() {
      const order = data.order[choice.use][choice.memory];
      if (!order.includes(choice.recipe) && order.length) [choice.recipe] = order;
      const models = new Map();
      for (const i of order) models.set(data.recipes[i].model, [...(models.get(data.recipes[i].model) ?? []), i]);
      model.replaceChildren(...[...models].map(([label, numbers]) =>
        make("optgroup", numbers.map((i) => make("option", data.recipes[i].title, { value: i })), { label })));
      const away = data.recipes.flatMap((one) => {
        const answer = answerOf(data, one, choice);
        return "no" in answer ? [make("li", [link(one.title, `../${one.page}`), ": ", ...reason(data, data.reasons[answer.no])])] : [];
      });
      const obsolete = data.obsolete.map((one) => make("li", [link(one.title, `../${one.page}`), ": ", ...prose(one.why), ...(one.newer_page ? [" → ", link(one.newer, `../${one.newer_page}`)] : [])]));
      others.replaceChildren(
        ...(away.length ? [folded(`Not offered for this use and memory: ${away.length}`, listed(away, "sb-choose-away"))] : []),
        ...(obsolete.length ? [folded(`Obsolete: ${obsolete.length}`, listed(obsolete, "sb-choose-away"))] : []));
    }
    function fill() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      list.replaceChildren(...rows(data, choice, words).map((i) => row(data, i, choice, take)));
    }
    function show() {
      model.value = String(choice.recipe);
      shown.replaceChildren(...answerTo(data, choice));
      fill();
    }
    function take(number) {
      choice.recipe = number;
      show();
      place.scrollIntoView();
    }
    for (const [name, control] of [["use", use], ["memory", memory]])
      control.addEventListener("change", () => {
        choice[name] = Number(control.value);
        offer();
        show();
      });
    model.addEventListener("change", () => {
      choice.recipe = Number(model.value);
      show();
    });
    search.addEventListener("input", fill);
    const form = make("form", [field("use", "Use", use), field("memory", "Memory", memory), field("model", "Model", model)], { "aria-label": "Choose", class: "sb-choose" });
    form.addEventListener("submit", (event) => event.preventDefault());
    const head = make("thead", make("tr", COLUMNS.map((title) => make("th", title, { scope: "col" }))));
    const table = make("div", make("table", [head, list], { class: "table sb-table" }), { class: "sb-scroll", id: "sb-choose-table" });
    place.append(form, shown, field("search", "Search all that fit this use and memory", search), table, others);
    document.getElementById("sb-chooser-table").remove();
    offer();
    show();
  }

  start();
})();
