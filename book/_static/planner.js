// The planner in the page: a form that makes a `sparkbook plan` line, and has that line run in the page when the reader asks (page.js).
(() => {
  "use strict";

  const { make, runner, shown } = window.sparkbookPage;

  // A word as a shell has to be given it.
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

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
    const { button, answer, ask, refresh } = runner({
      name: "planner",
      instead: "run the line above where sparkbook is installed",
      archives: "library",
      size: data.size,
      key: () => line.textContent,
      question: () => ({ line: line.textContent }),
      missing: () => (recipe.value || typed.value.trim() ? null : "Paste a launch line first, or choose a recipe."),
      shown,
    });

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
      refresh();
    }

    const form = make("form", [...fields], { "aria-label": "Planner", class: "sb-choose sb-planner-form", novalidate: "" });
    form.append(make("div", [line, copy], { class: "sb-choose-launch sb-planner-wide" }), button);
    form.addEventListener("submit", ask);
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
