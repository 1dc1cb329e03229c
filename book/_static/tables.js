// Makes the overview, and the record's tables, sortable and gives each a filter. Without this script it is a plain table with everything in it.
(() => {
  "use strict";

  const key = (row, column) => row.cells[column].textContent.trim();
  const number = (text) => (/^[\d,]+(\.\d+)?$/.test(text) ? Number(text.replaceAll(",", "")) : NaN);

  // Numbers by value, words by the alphabet; a dash (no source gives the figure) comes last both ways.
  function compare(a, b, direction) {
    if (a === "–" || b === "–") return (a === "–") - (b === "–");
    const [x, y] = [number(a), number(b)];
    const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
    return direction * order;
  }

  function sortBy(table, column) {
    const head = table.tHead.rows[0].cells[column];
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => compare(key(a, column), key(b, column), direction));
    body.append(...rows);
  }

  function addSorting(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sb-sort";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, column));
      head.replaceChildren(button);
    });
  }

  function addFilter(table) {
    const box = document.createElement("div");
    box.className = "sb-filter";
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("output");
    input.type = "search";
    input.id = "sb-filter-input";
    input.placeholder = table.dataset.example || "qwen nvfp4";
    label.htmlFor = input.id;
    label.textContent = "Filter";
    const rows = [...table.tBodies[0].rows];
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      // The page's own choices, if it has any, hide rows by the style sheet.
      for (const row of rows) shown += getComputedStyle(row).display !== "none";
      count.textContent = `${shown} of ${rows.length}`;
    };
    input.addEventListener("input", apply);
    for (const select of document.querySelectorAll(".sb-narrow select")) select.addEventListener("change", apply);
    box.append(label, input, count);
    table.closest(".sb-scroll").before(box);
    apply();
  }

  function start() {
    for (const table of document.querySelectorAll("table.sb-overview, table.sb-record")) {
      addSorting(table);
      addFilter(table);
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
