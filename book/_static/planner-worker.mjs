// The planner's own thread (book/_static/planner.js starts it when the reader asks): Python, and the command in it.
import { loadPyodide } from "./planner/pyodide.mjs";
import { start } from "./planner-python.mjs";

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

async function library() {
  const answer = await fetch(new URL("planner/library.zip", import.meta.url));
  if (!answer.ok) throw new Error(`${answer.url.split("/").pop()}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

const ready = start(loadPyodide, library(), { stdout: () => {}, stderr: () => {} });
ready.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ failed: String(error.message ?? error) }),
);

onmessage = async ({ data: { id, line } }) => {
  try {
    postMessage({ id, answer: (await ready)(line) });
  } catch (error) {
    postMessage({ id, failed: String(error.message ?? error) });
  }
};
