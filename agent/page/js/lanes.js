// Time lanes: one row a todo with its attempts and jobs, then GPUs, subagents, the model, and what a person was asked.

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

const FOLDED = 0.04;

/** Time to a share of the width. Long stretches in which nobody drove the session are drawn narrow when `fold` is on. */
function scaleOf(m, fold) {
  const gaps = fold ? m.absences.map(([start, end]) => [start, end ?? m.end]).filter(([start, end]) => end - start > 0.1 * m.end) : [];
  const cut = gaps.reduce((sum, [start, end]) => sum + end - start, 0);
  const wide = (1 - FOLDED * gaps.length) / Math.max(1e-9, m.end - cut);
  const pieces = [];
  let at = 0, share = 0;
  for (const [start, end] of gaps) {
    pieces.push([at, start, share, wide]);
    share += (start - at) * wide;
    pieces.push([start, end, share, FOLDED / (end - start)]);
    share += FOLDED;
    at = end;
  }
  pieces.push([at, m.end, share, wide]);
  return {
    gaps,
    to: (time) => { const t = clamp(time, 0, m.end), p = pieces[Math.max(0, lastWhere(pieces, (piece) => piece[0] <= t))]; return p[2] + (t - p[0]) * p[3]; },
    back: (x) => { const p = pieces[Math.max(0, lastWhere(pieces, (piece) => piece[2] <= x))]; return Math.min(p[1], p[0] + (x - p[2]) / p[3]); },
    inGap: (time) => gaps.some(([start, end]) => time > start && time < end),
    span: m.end - cut,
  };
}

/** Each lane: {name, note, kind, bars: [{start, end, cls, title, open, text}], marks, height}. */
function lanesOf(m) {
  const lanes = [];
  const groups = new Map();
  for (const t of m.todos) if (t.group) groups.set(t.group, [...(groups.get(t.group) || []), t]);
  const folded = new Map([...groups].filter(([, members]) => members.length > 4));
  const begins = (t) => t.attempts[0]?.[0] ?? (t.last[2] === null && t.status === "pending" ? Infinity : m.rows[t.last[0]]?.[2] ?? Infinity);
  const done = new Set();
  for (const t of [...m.todos].sort((a, b) => begins(a) - begins(b))) {
    if (t.group && folded.has(t.group)) {
      if (!done.has(t.group)) lanes.push(groupLane(m, t.group, folded.get(t.group)));
      done.add(t.group);
    } else lanes.push(todoLane(m, t));
  }
  const todos = lanes.length;
  for (const lease of alike(m.leases)) {
    lanes.push({ name: `GPU ${ranges(lease.gpus)}`, note: lease.host, kind: "gpu", bars: lease.spans.map(([job, todo, start, end]) => ({ start, end, cls: "lease", title: `${todo} held it`, text: todo, open: { job } })) });
  }
  for (const child of m.children) {
    lanes.push({ name: child.title, note: "subagent", kind: "child", bars: [{ start: child.start, end: child.end, cls: `attempt ${child.status === "running" ? "in_progress" : child.status} sort-research`, title: `subagent ${child.title}: ${child.status}`, open: { child: child.id } }] });
  }
  if (m.calls.length || m.tools.length) {
    const calls = m.calls.map((c) => ({ start: c.start, end: c.end, cls: `solid sort-model ${c.status}`, title: `${c.model || "model"}${c.purpose ? `, ${c.purpose}` : ""}: ${c.status}, ${duration((c.end ?? m.end) - c.start)}, ${amount(c.in)} tokens in, ${amount(c.out)} out` }));
    if (calls.length) lanes.push({ name: "model", note: `${calls.length}`, kind: "model", ...stacked(calls, m.end) });
    const tools = m.tools.map(([start, end, name, status]) => ({ start, end, cls: `solid sort-tool ${status}`, title: `${name}: ${status}` }));
    if (tools.length) lanes.push({ name: "tools", note: `${tools.length}`, kind: "model", ...stacked(tools, m.end) });
  }
  if (m.questions.length || m.said.length) {
    lanes.push({
      name: "you", note: "", kind: "person",
      bars: m.questions.map((q) => ({ start: q.start, end: q.end, cls: "solid sort-ask", title: `${q.text} ${q.answer ? `→ ${q.answer}` : "(open)"}`, open: { todo: q.todo } })),
      marks: m.said.map((at) => ({ at, cls: "said", title: "said something" })),
    });
  }
  return { lanes, todos };
}

/** Very many todos in as few rows as they can share. */
function shared(m, lanes) {
  const spans = lanes.flatMap((lane) => lane.bars.filter((b) => !b.cls.startsWith("job")).map((b) => ({ ...b, text: lane.name, name: lane.name })));
  const rows = [];
  for (const b of packed(spans.sort((x, y) => x.start - y.start), m.end)) {
    (rows[b.lane] ||= { name: b.lane ? "" : `${lanes.length} todos`, note: "", kind: "todo", bars: [] }).bars.push({ ...b, depth: 1 });
  }
  return rows.slice(0, MOST_LANES);
}

function stacked(spans, end) {
  const bars = packed(spans.sort((a, b) => a.start - b.start), end);
  const depth = Math.min(8, 1 + bars.reduce((most, bar) => Math.max(most, bar.lane), 0));
  for (const bar of bars) { bar.lane %= depth; bar.depth = depth; }
  return { bars, height: depth > 1 ? Math.max(20, depth * 6) : 20 };
}

function todoLane(m, t) {
  const bars = [], marks = [];
  for (const [start, end, status, host, attempt, note] of t.attempts) {
    bars.push({ start, end, cls: `attempt kind-${t.kind} ${status === "failed" && t.handled ? "handled" : status === "running" ? "in_progress" : status}`, title: `${t.id}${attempt > 1 ? `, try ${attempt}` : ""} ${WORDS[status] || status} after ${duration((end ?? m.end) - start)}${host ? ` on ${host}` : ""}${note ? `: ${note}` : ""}`, open: { todo: t.id }, text: duration((end ?? m.end) - start) });
  }
  for (const job of m.jobsOf[t.id] || []) {
    if (job.status === "refused") continue;
    bars.push({ start: job.start, end: job.end, cls: `job ${job.status} ${job.service ? "service" : ""}`, title: `job ${job.id} ${job.status}${job.end === null ? "" : ` after ${duration(job.end - job.start)}`}${job.note ? `: ${job.note}` : ""}`, open: { job: job.id } });
  }
  if (!t.attempts.length && TERMINAL.has(t.status)) marks.push({ at: m.rows[t.last[0]]?.[2] ?? 0, cls: `gate ${look(t, t.status)}`, title: `${t.id} ${t.status}${t.last[2] ? `: ${t.last[2]}` : ""}` });
  return { name: t.id, note: t.kind === "job" ? "" : t.kind, kind: "todo", todo: t, bars, marks, open: { todo: t.id } };
}

function groupLane(m, name, members) {
  const spans = members.flatMap((t) => t.attempts.map(([start, end, status]) => ({ start, end, cls: `solid ${status === "running" ? "in_progress" : status}`, title: `${t.id} ${WORDS[status] || status} after ${duration((end ?? m.end) - start)}`, open: { todo: t.id } })));
  return { name, note: `× ${members.length}`, kind: "todo", members, ...stacked(spans, m.end), marks: [] };
}

function makeLanes(m, act) {
  const { lanes: all, todos } = lanesOf(m);
  const few = todos > MOST_LANES ? [...shared(m, all.slice(0, todos)), ...all.slice(todos)] : all;
  let zoom = 1, everything = false, folding = true, scale = scaleOf(m, true);
  const inner = h("div", { class: "lanes-inner" });
  const scroll = h("div", { class: "lanes-scroll", tabindex: "0", "aria-label": "time lanes" }, inner);
  const over = h("div", { class: "lanes-over" });
  const needle = h("div", { class: "needle" }, h("span", { class: "needle-time" }));
  const shade = h("div", { class: "shade" });
  const names = new Map();

  const x = (time) => `${(100 * scale.to(time)).toFixed(4)}%`;
  const track = () => Math.max(120, scroll.clientWidth - (scroll.clientWidth < 500 ? 104 : 168));
  const share = (start, end) => Math.max(0, scale.to(end ?? m.end) - scale.to(start));
  const width = (start, end) => `max(2px, ${(100 * share(start, end)).toFixed(4)}%)`;

  function bar(b, height) {
    const style = { left: x(b.start), width: width(b.start, b.end) };
    if (b.depth > 1) { style.top = `${(100 * b.lane / b.depth).toFixed(2)}%`; style.height = `${(100 / b.depth).toFixed(2)}%`; }
    const room = share(b.start, b.end) * zoom;
    return h("button", { class: `bar ${b.cls}${b.end === null ? " open" : ""}`, style, title: b.title, tabindex: "-1", onclick: (e) => { e.stopPropagation(); if (b.open) act.open(b.open); else act.seek(placeAt(m, b.start)); } }, b.text && room * track() > 42 ? h("span", {}, b.text) : null);
  }

  function draw() {
    const shown = everything ? all : few;
    names.clear();
    scale = scaleOf(m, folding);
    const step = niceStep(scale.span / zoom, scroll.clientWidth < 600 ? 4 : 8, TIME_STEPS);
    const ticks = [];
    for (let t = 0; t <= m.end * 1.0001 && ticks.length < 2000; t += step) {
      const last = scale.to(t) > 0.94;
      if (scale.inGap(t) || (last && t > 0 && (scale.to(t) - scale.to(t - step)) * zoom * track() < 96)) continue;
      ticks.push(h("span", { class: last ? "tick last" : "tick", style: { left: x(t) } }, clock(Number(t.toFixed(3)))));
    }
    const rows = shown.map((lane) => {
      const label = h("button", { class: `lane-name kind-${lane.kind}`, title: lane.todo?.title || lane.name, onclick: () => lane.open && act.open(lane.open) }, h("i", { class: "lane-mark" }), h("span", { class: "lane-id" }, lane.name), lane.note ? h("span", { class: "lane-note" }, lane.note) : null);
      if (lane.todo) names.set(lane.todo.id, label);
      const track = h("div", { class: "track", style: { height: `${lane.height || 20}px` } }, lane.bars.map((b) => bar(b, lane.height)), (lane.marks || []).map((mark) => h("i", { class: `point ${mark.cls}`, style: { left: x(mark.at) }, title: mark.title })));
      return h("div", { class: `lane ${lane.kind}` }, label, track);
    });
    inner.style.setProperty("--zoom", zoom);
    over.replaceChildren(...m.absences.map(([start, end, note]) => h("div", { class: "absence", style: { left: x(start), width: width(start, end) }, title: note }, folding && scale.gaps.some((gap) => gap[0] === start) ? h("span", {}, `${note} ${duration((end ?? m.end) - start)}`) : null)), shade, needle);
    inner.replaceChildren(h("div", { class: "lane axis" }, h("div", { class: "lane-name" }), h("div", { class: "track" }, ticks)), ...rows, h("div", { class: "over-frame" }, over));
    more.hidden = few === all;
    more.textContent = everything ? "share lanes" : "a lane for each todo";
    at(act.place());
  }

  function setZoom(next, centre) {
    const before = zoom, track = inner.clientWidth;
    const focus = centre ?? scale.to(timeAt(m, act.place()));
    zoom = clamp(next, 1, 400);
    if (zoom === before) return;
    draw();
    scroll.scrollLeft = focus * inner.clientWidth - (focus * track - scroll.scrollLeft);
  }

  function at(place) {
    const time = place >= m.rows.length ? m.end : timeAt(m, place);
    needle.style.left = x(time);
    needle.classList.toggle("flip", scale.to(time) > 0.85);
    shade.style.left = x(time);
    needle.firstChild.textContent = place >= m.rows.length ? "" : clock(time);
    for (const [id, label] of names) {
      const status = look(m.todo[id], statusAt(m.todo[id], place)?.[1]);
      label.className = `lane-name kind-todo st-${status}`;
      label.firstChild.textContent = MARKS[status === "handled" ? "failed" : status] || "·";
    }
  }

  const more = h("button", { class: "link", onclick: () => { everything = !everything; draw(); } });
  inner.addEventListener("click", (e) => {
    const frame = over.getBoundingClientRect();
    if (e.clientX < frame.left || e.target.closest(".lane-name")) return;
    act.seek(placeAt(m, scale.back(clamp((e.clientX - frame.left) / frame.width, 0, 1))));
  });
  scroll.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const frame = over.getBoundingClientRect();
    setZoom(zoom * (e.deltaY < 0 ? 1.3 : 1 / 1.3), clamp((e.clientX - frame.left) / frame.width, 0, 1));
  }, { passive: false });
  const keys = [["−", "Narrow (-)", () => setZoom(zoom / 1.6)], ["+", "Widen (+)", () => setZoom(zoom * 1.6)], ["⤢", "Whole session (0)", () => setZoom(1)]];
  if (scale.gaps.length) keys.unshift(["≈", "Times without anybody narrow, or true to scale", () => { folding = !folding; draw(); }]);
  const node = h("section", { class: "card lanes", id: "lanes" },
    h("div", { class: "card-head" }, h("h2", {}, "What ran when"), legend(m), h("div", { class: "buttons noprint" }, keys.map(([text, title, go]) => h("button", { class: "tool", title, "aria-label": title, onclick: go }, text)))),
    scroll, more);
  return { node, draw, at, zoom: (factor) => setZoom(factor ? zoom * factor : 1) };
}

function legend(m) {
  const has = (status) => m.todos.some((t) => look(t, t.status) === status);
  const names = { completed: "completed", in_progress: "running", failed: "failed", handled: "failed, answered", cancelled: "cancelled" };
  return h("div", { class: "legend" }, Object.entries(names).filter(([status]) => has(status)).map(([status, word]) => h("span", {}, h("i", { class: `key ${status}` }), word)),
    m.jobs.length ? h("span", {}, h("i", { class: "key jobkey" }), "its job") : null, m.absences.length ? h("span", {}, h("i", { class: "key absence" }), "nobody drove it") : null);
}
