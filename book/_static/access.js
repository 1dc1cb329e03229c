// What the theme's pages lack for a screen reader, by axe-core's rules; the browser test names each fault that would be left.
(() => {
  "use strict";
  // A name given beside a visible text must not differ from it: the text alone is the name.
  const named = ".search-button-field, .theme-switch-button, details.admonition > summary";
  for (const element of document.querySelectorAll(named)) element.removeAttribute("aria-label");
  for (const summary of document.querySelectorAll("nav summary")) {
    const over = summary.closest("li")?.querySelector("a")?.textContent.trim();
    if (!summary.textContent.trim()) summary.setAttribute("aria-label", over ? `Pages below ${over}` : "Pages below");
  }
  const home = document.querySelector(".sidebar-primary-items__start .navbar-brand")?.parentElement;
  home?.setAttribute("role", "navigation");
  home?.setAttribute("aria-label", "Start page");
  // The corner of a table with names in both directions is no heading.
  for (const corner of document.querySelectorAll("th:empty, th:has(> p:only-child:empty)"))
    if (!corner.textContent.trim()) corner.replaceWith(document.createElement("td"));
  // In a table a name stays in one piece; a whole line, an address or an object in JSON may break, so that the table need not scroll.
  for (const cell of document.querySelectorAll(".bd-article td")) {
    const columns = cell.parentElement.cells.length;
    const long = (text) => text.length > (columns > 6 ? 14 : columns > 3 ? 20 : 26);
    for (const code of cell.querySelectorAll("code")) code.classList.toggle("sb-long", long(code.textContent));
    cell.classList.toggle("sb-long", cell.querySelector("code.sb-long") !== null || cell.textContent.split(/\s+/).some(long));
  }
  // What scrolls sideways on a narrow screen can be reached by the keyboard.
  for (const wide of document.querySelectorAll(".sb-scroll, .cell_output pre, .highlight pre")) wide.tabIndex = 0;
  if (matchMedia("(max-width: 600px)").matches)
    for (const figure of document.querySelectorAll(".cell_output:has(> img)")) {
      figure.tabIndex = 0;
      const alone = document.createElement("a");
      alone.href = figure.querySelector(":scope > img").src;
      alone.className = "sb-whole-figure";
      alone.textContent = "The figure is wider than this screen: move it sideways, or open it alone";
      figure.before(alone);
    }
})();
