// Answers questions as a page's worker does, in node: page.mjs PYODIDE-AND-ARCHIVES-FOLDER QUESTIONS.json ANSWERS.json ARCHIVE...
// A question is a command line, or a list of files on this machine.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, questions, answers, ...archives] = process.argv.slice(2);
const file = (name) => pathToFileURL(path.join(folder, name));
const { loadPyodide } = await import(file("pyodide.mjs"));
const { start } = await import(pathToFileURL(path.join(import.meta.dirname, "../../book/_static/page-python.mjs")));
const began = performance.now();
const { answer, given } = await start(loadPyodide, archives.map((name) => new Uint8Array(fs.readFileSync(path.join(folder, `${name}.zip`)))));
const found = { started_s: (performance.now() - began) / 1000, answers: [], seconds: [] };
for (const question of JSON.parse(fs.readFileSync(questions, "utf8"))) {
  const at = performance.now();
  const files = Array.isArray(question) && question.map((name) => ({ name: path.basename(name), content: new Uint8Array(fs.readFileSync(name)) }));
  found.answers.push(JSON.parse(files ? given(files) : answer(question)));
  found.seconds.push((performance.now() - at) / 1000);
}
fs.writeFileSync(answers, JSON.stringify(found));
