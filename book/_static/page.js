// What the pages share that run the command in the reader's browser (planner.js, paste.js): the answer is the command's own
// (sparkbook.site.in_page, by Pyodide in a worker), and nothing is loaded before the button is pressed.
window.sparkbookPage = (() => {
  "use strict";

  const HERE = new URL(".", document.currentScript.src);
  const SITE = new URL("../", HERE);

  const make = (tag, content = [], attributes = {}) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...[content].flat());
    return element;
  };
  const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
  // `code` in backticks, as the library's texts have it.
  const prose = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", part) : part));
  // Python in its own thread, started once for the page.
  const python = {
    worker: null,
    waiting: new Map(),
    last: 0,
    start(archives, onCome) {
      this.worker ??= new Worker(new URL(`page-worker.mjs?${archives}`, HERE), { type: "module" });
      this.worker.onmessage = ({ data }) => {
        if (data.come) onCome(data.come);
        else if (data.ready) onCome(null);
        else if (data.id) {
          const { done, fail } = this.waiting.get(data.id) ?? {};
          this.waiting.delete(data.id);
          if (data.failed) this.stop(data.failed, fail);
          else {
            try {
              done?.(JSON.parse(data.answer));
            } catch (error) {
              fail?.(error);
            }
          }
        } else if (data.failed) this.stop(data.failed);
      };
      this.worker.onerror = (event) => this.stop(event.message || "a file of it could not be loaded");
    },
    ask(question) {
      return new Promise((done, fail) => {
        this.waiting.set(++this.last, { done, fail });
        this.worker.postMessage({ id: this.last, ...question });
      });
    },
    // Ends the thread, and every question with this reason.
    stop(reason, ...more) {
      this.worker?.terminate();
      this.worker = null;
      for (const fail of [...more, ...[...this.waiting.values()].map((one) => one.fail)]) fail?.(new Error(reason));
      this.waiting.clear();
    },
  };

  function impossible(name, instead) {
    if (location.protocol === "file:")
      return `A page opened as a file can't run the ${name}. Serve the site (make serve-site in a checkout), or ${instead}.`;
    if (typeof Worker === "undefined" || typeof WebAssembly === "undefined")
      return `The ${name} needs WebAssembly, which this browser does not have: ${instead}.`;
    return null;
  }

  // A finding: its rule is a link to the rule's page; what it rests on and where that is known from, and what to do, have a line each.
  function remark({ severity, rule, message, evidence, fix, why, source }) {
    const name = why ? make("a", rule, { href: new URL(why, SITE) }) : rule;
    const address = (text) => (/^https:\/\/\S+$/.test(text ?? "") ? text : null);
    const from = address(evidence) ?? address(source);
    const basis = [...(evidence && !address(evidence) ? [evidence, " "] : []), ...(from ? [make("a", from.replace(/^https:\/\/(www\.)?/, ""), { href: from })] : [])];
    return make("li", [
      make("div", [make("strong", severity), " ", name, ": ", ...prose(message)]),
      ...(fix ? [make("div", make("em", ["→ ", ...prose(fix)]))] : []),
      ...(basis.length ? [make("small", basis)] : []),
    ], { class: `finding finding-${severity}` });
  }

  const range = (pair, digits = 1, unit = "") => {
    if (!pair) return "not known";
    const [low, high] = pair.map((value) => (value === null ? "not known" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })));
    return (low === high ? low : `${low} to ${high}`) + unit;
  };
  const figure = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });

  function facts(summary) {
    const rows = [
      ["Memory for the engine", summary.requested_gib === null ? "the sum of its parts" : `${summary.requested_gib.toFixed(1)} of ${summary.total_gib} GiB (fraction ${summary.fraction})`],
      ...Object.entries(summary.parts_gib).map(([name, pair]) => [name[0].toUpperCase() + name.slice(1), range(pair, 1, " GiB")]),
      ["One sequence", `${range(summary.needed_gib, 2, " GiB")} for ${summary.context.toLocaleString("en")} tokens`],
      ["KV cache holds", summary.kv_tokens ? `${range(summary.kv_tokens, 0)} tokens, ${range(summary.concurrency, 2)} full sequences at once` : "not known"],
      ...summary.decode.map(({ requests, context, tok_s: [low, middle, high] }) => [
        `Decode, ${requests} request${requests === 1 ? "" : "s"}`, `${figure(middle)} tok/s (estimate; range ${figure(low)} to ${figure(high)}) with ${context.toLocaleString("en")} tokens of context each`]),
      ...(summary.decode.length ? [] : [["Decode", "no estimate: the sources do not give all the sizes that a decode step reads"]]),
      ...summary.first_token_s.map(({ prompt, cached, seconds: [low, middle, high] }) => [
        cached ? "First token, cached prompt" : "First token",
        `${figure(middle)} s (estimate; range ${figure(low)} to ${figure(high)}): ${prompt.toLocaleString("en")} tokens${cached ? `, ${cached.toLocaleString("en")} of them in the prefix cache` : " of prompt"}`]),
    ];
    return make("table", make("tbody", rows.map(([name, value]) => make("tr", [make("th", name, { scope: "row" }), make("td", value)]))), {
      class: "table sb-facts" });
  }

  // An answer of `sparkbook plan`, `diagnose` or `lint`, whatever the command says.
  function shown({ line, exit, text, told }) {
    const printed = make("pre", text, { tabindex: "0", "aria-label": "What the command prints" });
    const same = make("p", ["Output of ", make("code", line), "."], { class: "sb-choose-same" });
    if (exit === 2 || !told) return [make("p", make("strong", exit === 2 ? "The command can't use this input" : "The command's output"), { class: "sb-planner-verdict" }), printed, same];
    const { findings, cluster } = told;
    return [
      verdict(told, exit),
      ...(cluster ? [printed] : told.summary.parts_gib ? [facts(told.summary)] : []),
      findings.length ? make("ul", findings.map(remark), { class: "sb-choose-said" }) : make("p", "No warnings."),
      ...(cluster ? [] : [make("details", [make("summary", "The command's output"), printed])]),
      same,
    ];
  }

  function verdict({ summary, findings }, exit) {
    const [word, ...rest] = summary.parts_gib
      ? [summary.verdict, `: ${summary.model}, vLLM ${summary.release}, ${summary.context.toLocaleString("en")} tokens for each of ${summary.sequences} at once`]
      : summary.headline
        ? [summary.verdict[0].toUpperCase() + summary.verdict.slice(1), ": ", ...prose(summary.headline.replace(/^Healthy: t/, "T"))]
        : [exit ? "vLLM would refuse it, or run it badly" : "No errors", `: ${findings.length} finding${findings.length === 1 ? "" : "s"}`];
    const state = summary.parts_gib ? summary.verdict : exit ? "does not fit" : "fits";
    return make("p", [make("strong", word), ...rest], { class: `sb-planner-verdict sb-verdict-${state.replaceAll(" ", "-")}` });
  }

  // The button that has the command run, how far it is, and the place of its answer.
  //   name, instead: what runs, and what to do where it can't. archives, size: what the first run loads. key(): a text that changes with the
  //   question. question(): {line} or {files}. missing(): why there is nothing to ask yet. shown(found): the elements of an answer.
  function runner({ name, instead, archives, size, key, question, missing, shown }) {
    const run = make("button", [], { type: "submit", class: "sb-planner-run" });
    const cancel = make("button", "Cancel", { type: "button", class: "sb-choose-copy", hidden: "" });
    const bar = make("progress", [], { max: size, value: 0, "aria-label": "Loaded" });
    const come = make("span");
    const state = make("span", [], { role: "status" }); // read aloud, so it is not the place for figures that run
    const wait = make("p", [bar, " ", come, " ", state, " ", cancel], { class: "sb-planner-wait" });
    const answer = make("div", [], { class: "sb-planner-answer", role: "region", "aria-label": `Answer of the ${name}`, "aria-live": "polite", tabindex: "-1" });
    const licenses = make("a", "licenses", { href: new URL("planner/LICENSES.txt", HERE) });
    const about = make("small", ["Nothing that you type or choose leaves this page. Python runs in it with Pyodide (", licenses, ")."]);
    let answered = null;
    bar.hidden = true;

    function refresh() {
      run.textContent = python.worker ? "Answer" : `Run the ${name} in this page (downloads ${megabytes(size)} from this site, once)`;
      if (!run.disabled) state.textContent = answered !== null && answered !== key() ? "The input has changed since this answer." : "";
    }
    function tell(text, title = `The ${name} could not run`) {
      answered = null; // what stands here now is no answer
      answer.replaceChildren(make("p", make("strong", title)), make("p", text));
    }
    async function ask(event) {
      event.preventDefault();
      if (run.disabled) return;
      const asked = key();
      const why = impossible(name, instead);
      if (why) return tell(why);
      if (missing()) return tell(missing(), "Nothing to answer");
      const first = !python.worker;
      run.disabled = true;
      cancel.hidden = false;
      bar.hidden = !first;
      bar.value = 0;
      state.textContent = first ? "Loading …" : "Working …";
      try {
        python.start(archives, (bytes) => {
          if (bytes === null) bar.removeAttribute("value");
          else bar.value = bytes;
          come.textContent = bytes === null ? "" : `${megabytes(bytes)} of ${megabytes(size)}`;
          if (bytes === null) state.textContent = "Working …";
        });
        answer.replaceChildren(...shown(await python.ask(question())));
        answered = asked;
        answer.focus({ preventScroll: true });
      } catch (error) {
        if (error.message === "cancelled") tell("Cancelled.", "Cancelled");
        else tell(`${error.message}. Try again, or ${instead}.`);
      }
      run.disabled = false;
      cancel.hidden = bar.hidden = true;
      come.textContent = state.textContent = "";
      refresh();
    }
    cancel.addEventListener("click", () => python.stop("cancelled"));
    return { button: make("div", [run, wait, about], { class: "sb-planner-wide" }), answer, ask, refresh };
  }

  return { make, runner, shown };
})();
