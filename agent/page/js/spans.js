// What stands in the time lanes: todos with their attempts and jobs, GPUs, subagents, the model, a person's part.

const MOST_LANES = 40;

function packed(spans, end) {
  const ends = [];
  return spans.map((span) => {
    let lane = ends.findIndex((e) => e <= span.start + 1e-9);
    if (lane < 0) lane = ends.push(0) - 1;
    ends[lane] = span.end ?? end;
    return { ...span, lane };
  });
}

/** GPUs of a host that were always held together, as one. */
function alike(leases) {
  const same = new Map();
  for (const lease of leases) {
    const key = JSON.stringify([lease.host, lease.spans]);
    if (same.has(key)) same.get(key).gpus.push(lease.gpu);
    else same.set(key, { ...lease, gpus: [lease.gpu] });
  }
  return [...same.values()];
}

/** 0, 1, 2, 5 as 0–2, 5. */
function ranges(numbers) {
  const out = [];
  for (const n of numbers) {
    if (out.length && out[out.length - 1][1] === n - 1) out[out.length - 1][1] = n;
    else out.push([n, n]);
  }
  return out.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ");
}

/** Each lane: {name, note, kind, bars: [{start, end, cls, title, open, text}], marks, height}. */
function lanesOf(m) {
  const lanes = [];
  const groups = new Map();
  for (const t of m.todos) if (t.group) groups.set(t.group, [...(groups.get(t.group) || []), t]);
  const folded = new Map([...groups].filter(([, members]) => members.length > 4));
  const begins = (t) =>
    t.attempts[0]?.[0] ??
    (t.last[2] === null && t.status === "pending" ? Infinity : (m.rows[t.last[0]]?.[2] ?? Infinity));
  const done = new Set();
  for (const t of [...m.todos].sort((a, b) => begins(a) - begins(b))) {
    if (t.group && folded.has(t.group)) {
      if (!done.has(t.group)) lanes.push(groupLane(m, t.group, folded.get(t.group)));
      done.add(t.group);
    } else lanes.push(todoLane(m, t));
  }
  const todos = lanes.length;
  for (const lease of alike(m.leases)) {
    lanes.push({
      name: `GPU ${ranges(lease.gpus)}`,
      note: lease.host,
      kind: "gpu",
      bars: lease.spans.map(([job, todo, start, end]) => ({
        start,
        end,
        cls: "lease",
        title: `${todo} held it`,
        text: todo,
        open: { job },
      })),
    });
  }
  for (const child of m.children) {
    lanes.push({
      name: child.title,
      note: "subagent",
      kind: "child",
      bars: [
        {
          start: child.start,
          end: child.end,
          cls: `attempt ${child.status === "running" ? "in_progress" : child.status} sort-research`,
          title: `subagent ${child.title}: ${child.status}`,
          open: { child: child.id },
        },
      ],
    });
  }
  if (m.calls.length || m.tools.length) {
    const calls = m.calls.map((c) => ({
      start: c.start,
      end: c.end,
      cls: `solid sort-model ${c.status}`,
      title: `${c.model || "model"}${c.purpose ? `, ${c.purpose}` : ""}: ${c.status}, ${duration((c.end ?? m.end) - c.start)}, ${amount(c.in)} tokens in, ${amount(c.out)} out`,
    }));
    if (calls.length) lanes.push({ name: "model", note: `${calls.length}`, kind: "model", ...stacked(calls, m.end) });
    const tools = m.tools.map(([start, end, name, status]) => ({
      start,
      end,
      cls: `solid sort-tool ${status}`,
      title: `${name}: ${status}`,
    }));
    if (tools.length) lanes.push({ name: "tools", note: `${tools.length}`, kind: "model", ...stacked(tools, m.end) });
  }
  if (m.questions.length || m.said.length) {
    lanes.push({
      name: "you",
      note: "",
      kind: "person",
      bars: m.questions.map((q) => ({
        start: q.start,
        end: q.end,
        cls: "solid sort-ask",
        title: `${q.text} ${q.answer ? `→ ${q.answer}` : "(open)"}`,
        open: { todo: q.todo },
      })),
      marks: m.said.map((at) => ({ at, cls: "said", title: "said something" })),
    });
  }
  return { lanes, todos };
}

/** Very many todos in as few rows as they can share. */
function shared(m, lanes) {
  const spans = lanes.flatMap((lane) =>
    lane.bars.filter((b) => !b.cls.startsWith("job")).map((b) => ({ ...b, text: lane.name, name: lane.name })),
  );
  const rows = [];
  for (const b of packed(
    spans.sort((x, y) => x.start - y.start),
    m.end,
  )) {
    (rows[b.lane] ||= { name: b.lane ? "" : `${lanes.length} todos`, note: "", kind: "todo", bars: [] }).bars.push({
      ...b,
      depth: 1,
    });
  }
  return rows.slice(0, MOST_LANES);
}

function stacked(spans, end) {
  const bars = packed(
    spans.sort((a, b) => a.start - b.start),
    end,
  );
  const depth = Math.min(8, 1 + bars.reduce((most, bar) => Math.max(most, bar.lane), 0));
  for (const bar of bars) {
    bar.lane %= depth;
    bar.depth = depth;
  }
  return { bars, height: depth > 1 ? Math.max(20, depth * 6) : 20 };
}

function todoLane(m, t) {
  const bars = [],
    marks = [];
  for (const [start, end, status, host, attempt, note] of t.attempts) {
    bars.push({
      start,
      end,
      cls: `attempt kind-${t.kind} ${status === "failed" && t.handled ? "handled" : status === "running" ? "in_progress" : status}`,
      title: `${t.id}${attempt > 1 ? `, try ${attempt}` : ""} ${WORDS[status] || status} after ${duration((end ?? m.end) - start)}${host ? ` on ${host}` : ""}${note ? `: ${note}` : ""}`,
      open: { todo: t.id },
      text: duration((end ?? m.end) - start),
    });
  }
  for (const job of m.jobsOf[t.id] || []) {
    if (job.status === "refused") continue;
    bars.push({
      start: job.start,
      end: job.end,
      cls: `job ${job.status} ${job.service ? "service" : ""}`,
      title: `job ${job.id} ${job.status}${job.end === null ? "" : ` after ${duration(job.end - job.start)}`}${job.note ? `: ${job.note}` : ""}`,
      open: { job: job.id },
    });
  }
  if (!t.attempts.length && TERMINAL.has(t.status))
    marks.push({
      at: m.rows[t.last[0]]?.[2] ?? 0,
      cls: `gate ${look(t, t.status)}`,
      title: `${t.id} ${t.status}${t.last[2] ? `: ${t.last[2]}` : ""}`,
    });
  return { name: named(t.id), note: t.kind === "job" ? "" : t.kind, kind: "todo", todo: t, bars, marks, open: { todo: t.id } };
}

function groupLane(m, name, members) {
  const spans = members.flatMap((t) =>
    t.attempts.map(([start, end, status]) => ({
      start,
      end,
      cls: `solid ${status === "running" ? "in_progress" : status}`,
      title: `${t.id} ${WORDS[status] || status} after ${duration((end ?? m.end) - start)}`,
      open: { todo: t.id },
    })),
  );
  return { name, note: `× ${members.length}`, kind: "todo", members, ...stacked(spans, m.end), marks: [] };
}
