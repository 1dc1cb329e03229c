// Starts Python with the library in it: the one way in which a page's worker and the tests' node do it.

// `loadPyodide` is Pyodide's own, `archives` those that sparkbook.site.packed packs, `options` are for loadPyodide.
// Gives two functions that answer with JSON: `answer` to a command line, `given` to files, each {name, content} or a File of the browser
// (sparkbook.site.in_page).
export async function start(loadPyodide, archives, options = {}) {
  const python = await loadPyodide({ ...options, env: { HOME: "/home", PYTHONDONTWRITEBYTECODE: "1" } });
  for (const archive of archives) python.unpackArchive(await archive, "zip", { extractDir: "/library" });
  python.runPython("import os, sys; sys.path.insert(0, '/library'); os.mkdir('/given'); os.chdir('/given')");
  const { Command } = python.pyimport("sparkbook.site.in_page"); // first: it sets how the command shows errors
  const command = Command(python.pyimport("sparkbook.cli").main, python.pyimport("sparkbook.cli.output").listeners);
  // What the first answer of each verb would wait for.
  if (archives.length > 1) command.answer("sparkbook plan 'vllm serve openai/gpt-oss-20b'");
  return { answer: (line) => command.answer(line), given: (files) => given(python, command, files) };
}

// The files lie in the working directory while the command reads them; a browser's File is read piece by piece, where it is.
function given(python, command, files) {
  const { FS } = python;
  const mounted = files.every((file) => !file.content);
  if (mounted) FS.mount(FS.filesystems.WORKERFS, { files }, "/given");
  else for (const file of files) FS.writeFile(`/given/${file.name}`, file.content);
  python.runPython("import os; os.chdir('/given')"); // again: a mount takes the place of the folder
  try {
    return command.given(files.map((file) => file.name));
  } finally {
    python.runPython("import os; os.chdir('/')");
    if (mounted) FS.unmount("/given");
    else for (const file of files) FS.unlink(`/given/${file.name}`);
  }
}
