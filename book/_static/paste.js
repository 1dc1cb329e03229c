// The page that takes whatever an owner has: what is pasted, chosen or dropped becomes files, and the command says in the page what they are
// and what it finds in them (page.js, sparkbook.site.pasted).
(() => {
  "use strict";

  const { make, runner, shown } = window.sparkbookPage;

  // Names that a command line can have, each once.
  function named(files) {
    const taken = new Set();
    return files.map((file) => {
      let name = file.name.replace(/^[-.]+|[^\w.-]/g, "_");
      while (taken.has(name)) name = `_${name}`;
      taken.add(name);
      return new File([file], name);
    });
  }

  function paste(place) {
    const { size } = JSON.parse(place.querySelector("script").textContent);
    let chosen = [];
    const typed = make("textarea", [], { id: "sb-paste-text", rows: "12", spellcheck: "false", autocomplete: "off",
      placeholder: "A log, one line of an error, docker run …, vllm serve …, or a recipe" });
    const input = make("input", [], { id: "sb-paste-files", type: "file", multiple: "" });
    const listed = make("span", [], { role: "status" });
    const clear = make("button", "Remove the files", { type: "button", class: "sb-choose-copy" });
    const files = () => (chosen.length ? named(chosen) : [new File([typed.value], "pasted.txt")]);

    const { button, answer, ask, refresh } = runner({
      name: "doctor",
      instead: "run `sparkbook diagnose FILE` where sparkbook is installed",
      archives: "library,doctor",
      size,
      key: () => (chosen.length ? chosen.map((file) => `${file.name} ${file.size} ${file.lastModified}`).join("\n") : typed.value),
      question: () => ({ files: files() }),
      missing: () => (chosen.length || typed.value.trim() ? null : "Paste something first, or choose a file."),
      shown: ({ what, answers }) => [
        ...what.map((sentence) => make("p", sentence, { class: "sb-paste-what" })),
        ...answers.flatMap((one) => [make("h2", title(one.line)), ...shown(one)]),
      ],
    });
    const title = (line) => ({ diagnose: "Diagnosis", lint: "The launch line", plan: "Memory and speed" })[line.split(" ")[1]];

    function choose(files) {
      chosen = [...files];
      listed.textContent = chosen.map((file) => `${file.name}, ${(file.size / 1e6).toFixed(file.size < 1e7 ? 2 : 0)} MB`).join("; ");
      typed.parentElement.hidden = clear.hidden = false;
      typed.parentElement.hidden = chosen.length > 0;
      clear.hidden = chosen.length === 0;
      refresh();
    }
    input.addEventListener("change", () => choose(input.files));
    clear.addEventListener("click", () => {
      input.value = "";
      choose([]);
      typed.focus();
    });
    typed.addEventListener("input", refresh);

    const form = make("form", [
      make("div", [make("label", "Paste it here", { for: typed.id }), typed], { class: "sb-choose-field sb-planner-wide" }),
      make("div", [make("label", "Or choose files, or drop them here; several are logs of one run", { for: input.id }), input, make("p", [listed, " ", clear])], {
        class: "sb-choose-field sb-planner-wide" }),
      button,
    ], { "aria-label": "What you have", class: "sb-choose sb-planner-form", novalidate: "" });
    form.addEventListener("submit", ask);
    for (const name of ["dragenter", "dragover"])
      form.addEventListener(name, (event) => {
        event.preventDefault();
        form.classList.add("sb-paste-over");
      });
    for (const name of ["dragleave", "drop"]) form.addEventListener(name, () => form.classList.remove("sb-paste-over"));
    form.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return; // text that is dropped goes into the field
      event.preventDefault();
      choose(event.dataTransfer.files);
    });
    place.append(form, answer);
    choose([]);
  }

  for (const place of document.querySelectorAll(".sb-paste")) paste(place);
})();
