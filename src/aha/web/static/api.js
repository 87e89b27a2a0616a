// Talking to the server: questions become jobs, jobs are waited for, and given up when nobody looks any more.

const VISITOR = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const POLL = [60, 120, 250, 400]; // milliseconds; the last one goes on

export class Stopped extends Error {}

async function call(path, options = {}) {
  const headers = { "x-aha-visitor": VISITOR, ...(options.headers ?? {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  if (!response.ok) {
    let line = `the server answered ${response.status}`;
    try { line = (await response.json()).error ?? line; } catch { /* no JSON, no more to say */ }
    throw new Error(line);
  }
  return response;
}

export const get = async (path) => (await call(path)).json();
export const text = async (path) => (await call(path)).text();

export const post = async (path, value) => (await call(path, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value),
})).json();

export const upload = async (file) => (await call(`/api/pictures?name=${encodeURIComponent(file.name ?? "pasted")}`, {
  method: "POST", headers: { "content-type": "application/octet-stream" }, body: file,
})).json();

const kept = new Map(); // arrays that were fetched, youngest last
export function bytes(path) {
  const known = kept.get(path);
  if (known) {
    kept.delete(path);
    kept.set(path, known);
    return known;
  }
  const found = call(path).then((response) => response.arrayBuffer());
  kept.set(path, found);
  found.catch(() => kept.delete(path));
  if (kept.size > 120) kept.delete(kept.keys().next().value);
  return found;
}

const underWay = new Map(); // key of a job -> how many on this page wait for it
const cancel = (key) => call(`/api/jobs/${key}`, { method: "DELETE", keepalive: true }).catch(() => {});
addEventListener("pagehide", () => [...underWay.keys()].forEach(cancel)); // nobody is left who would look at them

/** The result of a question with its key. `onState` hears of progress; aborting the signal cancels the job. */
export const ask = async (path, question, options) => {
  const again = () => post(path, question);
  return follow(await again(), { ...options, again });
};

/**
 * The result of a question that was asked already, from the state that the server answered with. `again` asks once more:
 * a wish of this page that was taken back late may have cancelled what is waited for here.
 */
export async function follow(asked, { onState = () => {}, signal, again = null } = {}) {
  let state = asked;
  const { key } = state;
  underWay.set(key, (underWay.get(key) ?? 0) + 1);
  try {
    for (let turn = 0; state.status === "waiting" || state.status === "running"; turn++) {
      if (signal?.aborted) {
        if (underWay.get(key) === 1) await cancel(key); // others on this page may want it still
        throw new Stopped();
      }
      onState(state);
      await new Promise((resolve) => setTimeout(resolve, POLL[Math.min(turn, POLL.length - 1)]));
      state = await get(`/api/jobs/${key}`);
      if (state.status === "cancelled" && again && !signal?.aborted) state = await again();
    }
  } finally {
    const others = underWay.get(key) - 1;
    if (others) underWay.set(key, others);
    else underWay.delete(key);
  }
  if (signal?.aborted || state.status === "cancelled") throw new Stopped();
  if (state.status !== "done") throw new Error(state.error || "it failed");
  return { key: state.key, ...state.result };
}
