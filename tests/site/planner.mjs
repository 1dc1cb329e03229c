// Answers command lines as the planner's worker does, in node: planner.mjs PYODIDE-AND-LIBRARY-FOLDER LINES.json ANSWERS.json
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, lines, answers] = process.argv.slice(2);
const file = (name) => pathToFileURL(path.join(folder, name));
const { loadPyodide } = await import(file("pyodide.mjs"));
const { start } = await import(pathToFileURL(path.join(import.meta.dirname, "../../book/_static/planner-python.mjs")));
const began = performance.now();
const answer = await start(loadPyodide, new Uint8Array(fs.readFileSync(path.join(folder, "library.zip"))));
const found = { started_s: (performance.now() - began) / 1000, answers: [], seconds: [] };
for (const line of JSON.parse(fs.readFileSync(lines, "utf8"))) {
  const at = performance.now();
  found.answers.push(JSON.parse(answer(line)));
  found.seconds.push((performance.now() - at) / 1000);
}
fs.writeFileSync(answers, JSON.stringify(found));
