// The thread of a page that runs the command (book/_static/page.js starts it when the reader asks): Python, and the command in it.
// The address names the archives that the page needs: page-worker.mjs?library,doctor.
import { loadPyodide } from "./planner/pyodide.mjs";
import { start } from "./page-python.mjs";

// How much has come, of all that is fetched: the page shows it.
const fetchPlainly = self.fetch.bind(self);
let come = 0;
self.fetch = async (...what) => {
  const answer = await fetchPlainly(...what);
  if (!answer.ok || !answer.body) return answer;
  const counter = new TransformStream({
    transform(chunk, on) {
      come += chunk.byteLength;
      postMessage({ come });
      on.enqueue(chunk);
    },
  });
  return new Response(answer.body.pipeThrough(counter), { status: answer.status, headers: answer.headers });
};

async function archive(name) {
  const answer = await fetch(new URL(`planner/${name}.zip`, import.meta.url));
  if (!answer.ok) throw new Error(`${answer.url.split("/").pop()}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

const archives = self.location.search.slice(1).split(",").map(archive);
const ready = start(loadPyodide, archives, { stdout: () => {}, stderr: () => {} });
ready.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ failed: String(error.message ?? error) }),
);

onmessage = async ({ data: { id, line, files } }) => {
  try {
    const { answer, given } = await ready;
    postMessage({ id, answer: files ? given(files) : answer(line) });
  } catch (error) {
    postMessage({ id, failed: String(error.message ?? error) });
  }
};
