// Starts Python with the library in it: the one way in which a page's worker and the tests' node do it.

// `loadPyodide` is Pyodide's own, `library` the archive that sparkbook.site.planner packs, `options` are for loadPyodide.
// Gives a function from a command line to the JSON of sparkbook.site.in_page.answer.
export async function start(loadPyodide, library, options = {}) {
  const python = await loadPyodide({ ...options, env: { HOME: "/home", PYTHONDONTWRITEBYTECODE: "1" } });
  python.unpackArchive(await library, "zip", { extractDir: "/library" });
  python.runPython("import sys; sys.path.insert(0, '/library')");
  const { answer } = python.pyimport("sparkbook.site.in_page"); // first: it sets how the command shows errors
  const { main } = python.pyimport("sparkbook.cli");
  return (line) => answer(line, main);
}
