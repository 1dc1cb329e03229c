// The start page's chooser: shows what the page's own data says of a recipe, a use and a memory. Every answer was worked out when the site
// was assembled (sparkbook.site.chooser); nothing is computed here. Without this script the page has a table of all recipes.
(() => {
  "use strict";

  const make = (tag, content = [], attributes = {}) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...[content].flat());
    return element;
  };
  const figure = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2))));

  // `code` in backticks, as the library's texts have it.
  const prose = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", part) : part));

  function select(name, title, options, change) {
    const field = make("select", options, { id: `sb-choose-${name}` });
    field.addEventListener("change", change);
    return [make("div", [make("label", title, { for: field.id }), field], { class: "sb-choose-field" }), field];
  }

  function remark(data, number) {
    const [severity, message, fix, rule, why] = data.findings[number];
    const link = make("a", rule, { href: "../" + why });
    return make("li", [make("strong", severity), " ", link, ": ", ...prose(message), ...(fix ? [" ", make("em", ["→ ", ...prose(fix)])] : [])], {
      class: `finding finding-${severity}`,
    });
  }

  function answer(data, recipe, use, memory) {
    const plan = recipe.plans[use][memory];
    const speeds = data.speeds[plan.speed];
    const [words, judged] = recipe.fitted[use][memory] ?? [recipe.lines[use], recipe.lint[use]];
    const line = words.map((number) => data.lines[number]).join("\n");
    const order = ["error", "warning", "info"];
    const numbers = [...new Set([...plan.said, ...judged])].sort(
      (a, b) => order.indexOf(data.findings[a][0]) - order.indexOf(data.findings[b][0]));
    const grave = numbers.filter((number) => data.findings[number][0] !== "info");
    const facts = [
      ["On a Spark", `${plan.fit} (${plan.context.toLocaleString("en")} tokens for each of ${plan.sequences} requests at once)`],
      ["KV cache", plan.kv ? `${Math.round(plan.kv[0]).toLocaleString("en")} to ${Math.round(plan.kv[1]).toLocaleString("en")} tokens` : "not known"],
      ...speeds
        .filter(([requests], i) => i === 0 || requests <= Math.max(4, plan.sequences))
        .map(([requests, low, middle, high]) => [
          requests === 1 ? "Speed, one request" : `Speed, ${requests} requests`,
          `${figure(middle)} tok/s${requests === 1 ? ` with ${plan.behind.toLocaleString("en")} tokens of context` : " together"} (estimate; range ${figure(low)} to ${figure(high)})`]),
      ...(speeds.length ? [] : [["Speed", "no estimate: the sources do not give all the sizes that a decode step reads"]]),
      ...(recipe.weights ? [["Weights", `${figure(recipe.weights)} GB to download once`]] : []),
      ...(recipe.nodes > 1 ? [["Machines", String(recipe.nodes)]] : []),
    ];
    const pre = make("pre", line, { tabindex: "0", id: "sb-choose-line" });
    const copy = make("button", "Copy the line", { type: "button", class: "sb-choose-copy" });
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(line);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(pre);
        copy.textContent = "Selected: press Ctrl+C";
      }
    });
    const commands = [
      use ? null : `sparkbook recipes show ${recipe.id} --as docker`,
      `sparkbook plan ${recipe.id}${data.uses[use].options}${data.memories[memory].options}`,
      use ? null : `sparkbook lint ${recipe.id}`,
    ].filter(Boolean);
    return [
      make("p", [make("a", recipe.title, { href: `../models/${recipe.page}.html` }), `: ${recipe.summary}`]),
      make("div", [
        make("div", [
          make("table", make("tbody", facts.map(([name, value]) => make("tr", [make("th", name, { scope: "row" }), make("td", value)]))), {
            class: `table sb-facts sb-verdict-${plan.verdict.replaceAll(" ", "-")}` }),
          ...(use && !recipe.adjustable
            ? [make("p", "A script in this image sets the context and the number of requests, so the line is the same for every use.")]
            : []),
        ]),
        make("div", [pre, copy], { class: "sb-choose-launch" }),
      ], { class: "sb-choose-columns" }),
      make("p", grave.length ? `Errors and warnings: ${grave.length}` : "No warnings", { class: "sb-choose-count" }),
      make("ul", grave.map((number) => remark(data, number)), { class: "sb-choose-said" }),
      ...(numbers.length > grave.length
        ? [make("details", [make("summary", `${numbers.length - grave.length} more notes`),
            make("ul", numbers.filter((number) => !grave.includes(number)).map((number) => remark(data, number)), { class: "sb-choose-said" })])]
        : []),
      make("p", ["On the Spark, run in this order: ", ...["check", "weights fetch", "serve"].flatMap((verb, i) => [
        ...(i ? [", "] : []), make("code", `sparkbook ${verb} ${recipe.id}`)]), "."], { class: "sb-choose-same" }),
      make("p", ["The same on the command line: ", ...commands.flatMap((command, i) => [...(i ? ["; "] : []), make("code", command)]), "."], {
        class: "sb-choose-same" }),
    ];
  }

  function start() {
    const place = document.getElementById("sb-chooser");
    const source = document.getElementById("sb-chooser-data");
    if (!place || !source) return;
    const data = JSON.parse(source.textContent);
    const families = [...new Set(data.recipes.map((recipe) => recipe.family))];
    const models = families.map((family) =>
      make("optgroup", data.recipes.flatMap((recipe, i) => (recipe.family === family ? [make("option", recipe.title, { value: i })] : [])), {
        label: family[0].toUpperCase() + family.slice(1) }));
    const options = (choices) => choices.map((choice, i) => make("option", choice.title, { value: i }));
    const shown = make("div", [], { id: "sb-choose-answer", role: "region", "aria-label": "Answer", "aria-live": "polite" });
    const show = () => shown.replaceChildren(...answer(data, data.recipes[model.value], Number(use.value), Number(memory.value)));
    const [modelField, model] = select("model", "Model", models, show);
    const [useField, use] = select("use", "Use", options(data.uses), show);
    const [memoryField, memory] = select("memory", "Memory", options(data.memories), show);
    const preferred = data.recipes.findIndex((recipe) => recipe.id === place.dataset.first);
    model.value = String(Math.max(preferred, 0));
    place.append(make("form", [modelField, useField, memoryField], { "aria-label": "Choose", class: "sb-choose" }), shown);
    const table = document.getElementById("sb-chooser-table");
    const fold = make("details", make("summary", "All recipes in one table"));
    table.replaceWith(fold);
    fold.append(table);
    place.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    show();
  }

  start();
})();
