// The session as data, and what it looked like at any moment. A moment is a row: the number of messages that happened.

const MARKS = {
  completed: "✔",
  in_progress: "▶",
  pending: "○",
  failed: "✘",
  skipped: "⊘",
  cancelled: "⊗",
  running: "▶",
  paused: "‖",
  interrupted: "‖",
  retried: "↻",
};
const WORDS = { in_progress: "running", pending: "waiting" };
const SORTS = {
  job: "jobs",
  tool: "tools",
  research: "research",
  model: "the model",
  ask: "waiting for a person",
  queue: "waiting for a place",
  away: "nobody drove it",
  idle: "nothing to do",
  gate: "gates",
  race: "races",
  stop: "stopping",
};
const TERMINAL = new Set(["completed", "failed", "skipped", "cancelled"]);

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

/** The model, with what is derived from it once. */
function prepare(model) {
  const m = model;
  m.end = Math.max(m.session.seconds, m.rows.length ? m.rows[m.rows.length - 1][2] : 0, 0.001);
  m.todo = Object.fromEntries(m.todos.map((t) => [t.id, t]));
  m.job = Object.fromEntries(m.jobs.map((j) => [j.id, j]));
  m.jobsOf = {};
  for (const job of m.jobs) (m.jobsOf[job.todo] ||= []).push(job);
  for (const t of m.todos) {
    t.after = t.after.filter(([src]) => m.todo[src]);
    t.last = t.history[t.history.length - 1];
    t.status = t.last[1];
  }
  const answered = new Set();
  for (const t of m.todos) {
    for (const [src, on] of t.after)
      if (on === "failure" || (t.join === "any" && t.status === "completed")) answered.add(src);
  }
  for (const t of m.todos) t.handled = answered.has(t.id);
  m.races = {};
  for (const t of m.todos) if (t.kind === "race") for (const [src] of t.after) m.races[src] = t.id;
  m.text = m.rows.map(() => null);
  return m;
}

/** Time of the last message before a row. */
const timeAt = (m, place) => (place <= 0 || !m.rows.length ? 0 : m.rows[Math.min(place, m.rows.length) - 1][2]);
/** The row behind the last message of at most this time. */
const placeAt = (m, time) => lastWhere(m.rows, (row) => row[2] <= time + 1e-6) + 1;

/** [row, status, reason] of a todo at a moment; null before it was added. */
function statusAt(todo, place) {
  const at = lastWhere(todo.history, (entry) => entry[0] < place);
  return at < 0 ? null : todo.history[at];
}

/** Whether an edge is open, met or dead at a moment. */
function edgeAt(m, src, on, place) {
  const status = statusAt(m.todo[src], place)?.[1];
  if (!TERMINAL.has(status)) return "open";
  if (on === "finish") return "met";
  return (status === "completed") === (on === "success") && (status === "completed" || status === "failed")
    ? "met"
    : "dead";
}

/** What a status is drawn as: its name, but failures that the graph answers are apart, and so are ready todos. */
function look(todo, status) {
  if (status === "failed" && todo.handled) return "handled";
  return status || "unborn";
}

/** All words of a row in small letters, for search; made when first wanted. */
function textOf(m, index) {
  if (m.text[index] === null) {
    const row = m.rows[index];
    m.text[index] =
      `${row[1]} ${m.kinds[row[3]][0]} ${m.actors[row[4]]} ${row[6]} ${JSON.stringify(row[7])}`.toLowerCase();
  }
  return m.text[index];
}

/** A moment named by a person: a message number, a time such as 12:30, or a todo. Null when it is none. */
function findPlace(m, wanted) {
  const text = wanted.trim();
  if (/^#?\d+$/.test(text)) {
    const seq = Number(text.replace("#", ""));
    let found = 0;
    m.rows.forEach((row, index) => {
      if (row[0] === 0 && row[1] <= seq) found = index + 1;
    });
    return found;
  }
  if (/^\d+(:\d\d){1,2}$/.test(text))
    return placeAt(
      m,
      text.split(":").reduce((sum, part) => sum * 60 + Number(part), 0),
    );
  const unit = /^(\d+(?:\.\d+)?)(s|m|min|h|d)$/.exec(text);
  if (unit) return placeAt(m, Number(unit[1]) * { s: 1, m: 60, min: 60, h: 3600, d: 86400 }[unit[2]]);
  const names = m.todos.filter((t) => t.id === text);
  const todo = names[0] || m.todos.find((t) => t.id.startsWith(text));
  if (!todo) return null;
  const start = todo.history.find((entry) => entry[1] === "in_progress") || todo.history[0];
  return start[0] + 1;
}
