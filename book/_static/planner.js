// The planner in the page: a form that makes a `sparkbook plan` line, and runs that line in the page when the reader asks. Nothing is worked
// out here: the answer is the command's (sparkbook.site.in_page, by Pyodide in a worker), and nothing is loaded before the button is pressed.
(() => {
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
  // A word as a shell has to be given it.
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

  // Python in its own thread, started once for the page.
  const python = {
    worker: null,
    waiting: new Map(),
    last: 0,
    start(onCome) {
      this.worker ??= new Worker(new URL("planner-worker.mjs", HERE), { type: "module" });
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
    ask(line) {
      return new Promise((done, fail) => {
        this.waiting.set(++this.last, { done, fail });
        this.worker.postMessage({ id: this.last, line });
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

  function impossible() {
    if (location.protocol === "file:")
      return "A page opened as a file can't run the planner. Serve the site (make serve-site in a checkout), or run the line above where sparkbook is installed.";
    if (typeof Worker === "undefined" || typeof WebAssembly === "undefined")
      return "The planner needs WebAssembly, which this browser does not have. Run the line above where sparkbook is installed.";
    return null;
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

  function remark({ severity, rule, message, evidence, fix, why }) {
    const name = why ? make("a", rule, { href: new URL(why, SITE) }) : rule;
    return make("li", [make("strong", severity), " ", name, ": ", ...prose(message), ...(evidence ? [` (${evidence})`] : []), ...(fix ? [" ", make("em", ["→ ", ...prose(fix)])] : [])], {
      class: `finding finding-${severity}` });
  }

  function shown({ line, exit, text, told }) {
    const printed = make("pre", text, { tabindex: "0", "aria-label": "What the command prints" });
    if (exit === 2 || !told) return [make("p", make("strong", exit === 2 ? "The command can't use this input" : "The command's output"), { class: "sb-planner-verdict" }), printed];
    const { summary, findings, cluster } = told;
    return [
      make("p", [make("strong", summary.verdict), `: ${summary.model}, vLLM ${summary.release}, ${summary.context.toLocaleString("en")} tokens for each of ${summary.sequences} at once`], {
        class: `sb-planner-verdict sb-verdict-${summary.verdict.replaceAll(" ", "-")}` }),
      ...(cluster ? [printed] : [facts(summary)]),
      findings.length ? make("ul", findings.map(remark), { class: "sb-choose-said" }) : make("p", "No warnings."),
      ...(cluster ? [] : [make("details", [make("summary", "The command's output"), printed])]),
      make("p", ["Output of ", make("code", line), "."], { class: "sb-choose-same" }),
    ];
  }

  let number = 0;

  function planner(place) {
    const data = JSON.parse(place.querySelector("script").textContent);
    const own = ++number;
    const fields = [];

    function field(name, title, control, hint) {
      control.id = `sb-planner-${own}-${name}`;
      control.addEventListener("input", update);
      const parts = [make("label", title, { for: control.id }), control];
      if (hint) {
        control.setAttribute("aria-describedby", `${control.id}-hint`);
        parts.push(make("small", hint, { id: `${control.id}-hint` }));
      }
      const box = make("div", parts, { class: "sb-choose-field" });
      fields.push(box);
      return control;
    }
    function box(name, title, option, more = {}, offered = null) {
      const list = offered && make("datalist", offered.map((value) => make("option", [], { value })), { id: `sb-planner-${own}-${name}-list` });
      const control = make("input", [], { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "unchanged", ...more, ...(list ? { list: list.id } : {}) });
      control.dataset.option = option;
      field(name, title, control);
      if (list) fields.push(list);
      return control;
    }

    const families = [...new Set(data.recipes.map((recipe) => recipe.family))];
    const recipe = field("recipe", "Recipe", make("select", [
      ...families.map((family) => make("optgroup", data.recipes.filter((one) => one.family === family).map((one) => make("option", one.title, { value: one.id })), {
        label: family[0].toUpperCase() + family.slice(1) })),
      make("option", "A launch line of my own", { value: "" }),
    ]));
    recipe.value = data.first;
    const typed = field("line", "Launch line", make("textarea", "vllm serve openai/gpt-oss-20b --max-model-len 32768", { rows: "3", spellcheck: "false" }), "docker run …, vllm serve MODEL …, or a compose file");
    typed.parentElement.classList.add("sb-planner-wide");
    const number_ = { inputmode: "decimal" };
    const options = [
      box("context", "Context, tokens", "--context", number_),
      box("seqs", "Sequences at once", "--seqs", number_),
      box("fraction", "gpu-memory-utilization", "--fraction", number_),
      box("kv", "KV cache dtype", "--kv-dtype", {}, data.kv),
      box("available", "Memory available, GiB", "--available-gib", { ...number_, placeholder: "an idle Spark" }),
      box("nodes", "Sparks", "--nodes", { ...number_, placeholder: "1" }),
      box("release", "vLLM release", "--release", {}, data.releases),
    ];
    const further = box("further", "Further options of sparkbook plan", "", { placeholder: "--cotenant other=32GiB --explain" });
    further.parentElement.classList.add("sb-planner-wide");

    const line = make("pre", [], { tabindex: "0", "aria-label": "Command line" });
    const copy = make("button", "Copy the line", { type: "button", class: "sb-choose-copy" });
    const run = make("button", [], { type: "submit", class: "sb-planner-run" });
    const cancel = make("button", "Cancel", { type: "button", class: "sb-choose-copy", hidden: "" });
    const bar = make("progress", [], { max: data.size, value: 0, "aria-label": "Loaded" });
    const come = make("span");
    const state = make("span", [], { role: "status" }); // read aloud, so it is not the place for figures that run
    const wait = make("p", [bar, " ", come, " ", state, " ", cancel], { class: "sb-planner-wait" });
    const answer = make("div", [], { class: "sb-planner-answer", role: "region", "aria-label": "Answer of the planner", "aria-live": "polite", tabindex: "-1" });
    const licences = make("a", "licences", { href: new URL("planner/LICENCES.txt", HERE) });
    const about = make("small", ["Nothing that you type leaves this page. Python runs in it with Pyodide (", licences, ")."]);
    bar.hidden = true;

    function words() {
      const parts = ["sparkbook", "plan", quoted(recipe.value || typed.value.trim())];
      // One Spark is what the command plans for without --nodes, which takes 2 and more.
      for (const { value, dataset } of options)
        if (value.trim() && !(dataset.option === "--nodes" && value.trim() === "1")) parts.push(dataset.option, quoted(value.trim()));
      if (further.value.trim()) parts.push(further.value.trim());
      return parts.join(" ");
    }
    function update() {
      typed.parentElement.hidden = recipe.value !== "";
      line.textContent = words();
      copy.textContent = "Copy the line";
      run.textContent = python.worker ? "Answer" : `Run the planner in this page (downloads ${megabytes(data.size)} from this site, once)`;
      if (!run.disabled) state.textContent = answer.dataset.line && answer.dataset.line !== line.textContent ? "The line has changed since this answer." : "";
    }
    const tell = (text, title = "The planner could not run") => {
      delete answer.dataset.line; // what stands here now is no answer to a line
      answer.replaceChildren(make("p", make("strong", title)), make("p", text));
    };

    async function ask(event) {
      event.preventDefault();
      if (run.disabled) return;
      const asked = line.textContent;
      const why = impossible();
      if (why) return tell(why);
      if (!recipe.value && !typed.value.trim()) return tell("Paste a launch line first, or choose a recipe.", "Nothing to plan");
      const first = !python.worker;
      run.disabled = true;
      cancel.hidden = false;
      bar.hidden = !first;
      bar.value = 0;
      state.textContent = first ? "Loading …" : "Working …";
      try {
        python.start((bytes) => {
          if (bytes === null) bar.removeAttribute("value");
          else bar.value = bytes;
          come.textContent = bytes === null ? "" : `${megabytes(bytes)} of ${megabytes(data.size)}`;
          if (bytes === null) state.textContent = "Working …";
        });
        const found = await python.ask(asked);
        answer.replaceChildren(...shown(found));
        answer.dataset.line = asked;
        answer.focus({ preventScroll: true });
      } catch (error) {
        tell(error.message === "cancelled" ? "Cancelled." : `${error.message}. Try again, or run the line above where sparkbook is installed.`, error.message === "cancelled" ? "Cancelled" : undefined);
      }
      run.disabled = false;
      cancel.hidden = bar.hidden = true;
      come.textContent = state.textContent = "";
      update();
    }

    const form = make("form", [...fields], { "aria-label": "Planner", class: "sb-choose sb-planner-form", novalidate: "" });
    form.append(make("div", [line, copy], { class: "sb-choose-launch sb-planner-wide" }), make("div", [run, wait, about], { class: "sb-planner-wide" }));
    form.addEventListener("submit", ask);
    cancel.addEventListener("click", () => python.stop("cancelled"));
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(line.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(line);
        copy.textContent = "Selected: press Ctrl+C";
      }
    });
    place.append(form, answer);
    update();
  }

  for (const place of document.querySelectorAll(".sb-planner")) planner(place);
})();
