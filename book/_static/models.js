// A model's page: its recipes as tabs, and one switch for everything that is about the notebook. Without this script the recipes follow each
// other and the notebook's code can be unfolded cell by cell.
(() => {
  "use strict";

  const marks = [...document.querySelectorAll(".sb-variant")];
  if (!marks.length) return;
  const sections = marks.map((mark) => mark.closest("section"));
  const page = sections[0].parentElement;

  function switchFor() {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.addEventListener("change", () => document.documentElement.classList.toggle("sb-without-notebook", !box.checked));
    document.documentElement.classList.add("sb-without-notebook");
    const label = document.createElement("label");
    label.className = "sb-notebook-switch";
    label.append(box, " Show the notebook: code, parameters, checks, how to run it");
    return label;
  }

  function tabs() {
    const list = document.createElement("div");
    list.className = "sb-variant-tabs";
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Recipes of this model");
    const buttons = marks.map((mark, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = mark.dataset.label;
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", sections[i].id);
      button.addEventListener("click", () => {
        history.replaceState(null, "", `#${mark.id}`);
        select(i);
      });
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) buttons[(i + step + buttons.length) % buttons.length].focus();
      });
      sections[i].setAttribute("role", "tabpanel");
      sections[i].setAttribute("aria-label", mark.dataset.label);
      return button;
    });
    list.append(...buttons);
    function select(chosen) {
      sections.forEach((section, i) => {
        section.hidden = i !== chosen;
        buttons[i].setAttribute("aria-selected", String(i === chosen));
        buttons[i].tabIndex = i === chosen ? 0 : -1;
      });
      for (const link of document.querySelectorAll(".page-toc .toc-h2")) {
        const at = sections.findIndex((section) => `#${section.id}` === link.querySelector("a")?.getAttribute("href"));
        if (at >= 0) link.hidden = at !== chosen;
      }
    }
    return [list, select];
  }

  // The recipe that holds what the address names.
  function named() {
    const there = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    return there ? sections.findIndex((section) => section.contains(there)) : -1;
  }

  page.insertBefore(switchFor(), sections[0]);
  if (sections.length > 1) {
    const [list, select] = tabs();
    page.insertBefore(list, sections[0]);
    select(Math.max(named(), 0));
    window.addEventListener("hashchange", () => {
      const there = named();
      if (there < 0) return;
      select(there);
      document.getElementById(decodeURIComponent(location.hash.slice(1))).scrollIntoView();
    });
  }
})();
