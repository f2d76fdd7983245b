// The messages, in order: talk in full, everything else on a line; filtered, searched, and drawn only where one looks.

const CHUNK = 60;
const GROUP_NAMES = { talk: "Talk", todos: "Todos", jobs: "Jobs", reports: "Reports", session: "Session", details: "Details", other: "Other" };
const OFF_AT_FIRST = new Set(["reports", "details"]);

function marked(text, wanted) {
  if (!wanted) return text;
  const out = [], small = text.toLowerCase();
  let from = 0;
  for (let at = small.indexOf(wanted); at >= 0 && out.length < 200; at = small.indexOf(wanted, from)) {
    out.push(text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...out, text.slice(from)];
}

const toneOf = (m, row) => {
  const [kind] = m.kinds[row[3]], d = row[7] || {};
  if (kind === "todo.status") return d.now === "failed" && m.todo[d.id]?.handled ? "handled" : d.now;
  if (kind === "job.state") return d.state === "exited" ? (d.rc === 0 ? "completed" : d.signal && m.job[d.id]?.cancel ? "cancelled" : "failed") : d.state === "lost" || d.state === "refused" ? "failed" : "in_progress";
  if (kind === "session.status") return d.status;
  if (kind === "tool.answered") return d.rest?.is_error ? "failed" : "tool";
  return { "approval.asked": "ask", "approval.answered": "ask", "model.failed": "failed", "job.cancel": "cancelled", "child.reported": "completed" }[kind] || "";
};

/** Text that may be long: its beginning, and the rest behind a button. */
function longText(text, wanted, lines = 14) {
  const all = text.split("\n");
  if (all.length <= lines + 4 && text.length <= 1800) return h("div", { class: "said-text" }, markdown(text, wanted));
  const head = all.slice(0, lines).join("\n").slice(0, 1500);
  const node = h("div", { class: "said-text" }, markdown(head, wanted));
  node.append(h("button", { class: "link more", onclick: (e) => { e.stopPropagation(); node.replaceChildren(...markdown(text, wanted)); } }, `… ${amount(text.length - head.length)} more characters`));
  return node;
}

function callSummary(input) {
  if (!input || typeof input !== "object") return String(input ?? "");
  const first = Object.entries(input).filter(([, v]) => ["string", "number", "boolean"].includes(typeof v)).map(([k, v]) => `${k}: ${String(v).split("\n")[0]}`);
  return first.join(", ").slice(0, 160);
}

function makeLog(m, act) {
  const counts = {};
  for (const row of m.rows) { const group = m.kinds[row[3]][1]; counts[group] = (counts[group] || 0) + 1; }
  const on = new Set(Object.keys(counts).filter((g) => !OFF_AT_FIRST.has(g)));
  let wanted = "", visible = [], hidden = 0, anchor = null, chunks = [], shownAt = -1, source = -1;
  const list = h("div", { class: "log-list", tabindex: "0", "aria-label": "messages" });
  const found = h("button", { class: "quiet found", onclick: () => { for (const g of Object.keys(counts)) on.add(g); chips.forEach((chip) => chip.setAttribute("aria-pressed", "true")); choose(); } });
  const watcher = new IntersectionObserver((seen) => { for (const one of seen) if (one.isIntersecting) render(one.target.chunk); settle(); }, { root: list, rootMargin: "600px" });

  function choose() {
    visible = [];
    hidden = 0;
    m.rows.forEach((row, index) => {
      const chosen = on.has(m.kinds[row[3]][1]) && (source < 0 || row[0] === source);
      if ((!chosen && !wanted) || (wanted && !textOf(m, index).includes(wanted))) return;
      if (chosen) visible.push(index); else hidden++;
    });
    watcher.disconnect();
    chunks = [];
    for (let from = 0; from < visible.length; from += CHUNK) {
      const part = visible.slice(from, from + CHUNK);
      const node = h("div", { class: "chunk", style: { minHeight: `${part.length * 27}px` } });
      node.chunk = { part, node, drawn: false };
      chunks.push(node.chunk);
    }
    list.replaceChildren(...(chunks.length ? chunks.map((c) => c.node) : [h("p", { class: "empty" }, wanted ? `Nothing says “${wanted}”.` : "Nothing is selected.")]));
    chunks.forEach((c) => watcher.observe(c.node));
    found.textContent = wanted ? `${plural(visible.length, "match", "matches")}${hidden ? `, ${hidden} hidden` : ""}` : "";
    found.title = hidden ? "Show all kinds of messages" : "";
    shownAt = -1;
    at(act.place(), true);
  }

  function render(chunk) {
    if (chunk.drawn) return;
    chunk.drawn = true;
    chunk.node.style.minHeight = "";
    const place = act.place();
    chunk.node.replaceChildren(...chunk.part.map((index) => item(index, place)));
  }

  function item(index, place) {
    const row = m.rows[index], [kind, group] = m.kinds[row[3]];
    const when = h("span", { class: "when", title: new Date((m.session.began + row[2]) * 1000).toISOString() }, clock(row[2]));
    const number = h("span", { class: "seq" }, row[0] ? `${m.sources[row[0]][0].slice(0, 4)}·${row[1]}` : row[1]);
    const classes = `item ${group} tone-${toneOf(m, row)} k-${kind.replace(".", "-")}${index >= place ? " future" : ""}${index === place - 1 ? " now" : ""}${row[0] ? " child" : ""}`;
    return h("div", { class: classes, "data-index": index, onclick: (e) => { if (!e.target.closest("summary,.more") && !String(getSelection())) act.open({ row: index }, true); } }, number, when, h("div", { class: "what" }, content(row, kind)));
  }

  function content(row, kind) {
    const d = row[7] || {};
    const who = row[0] ? h("span", { class: "who child-of" }, m.sources[row[0]][1] || m.sources[row[0]][0]) : null;
    if (kind === "operator.said") return [h("span", { class: "who you" }, "you"), longText(d.text || row[6], wanted)];
    if (kind === "model.answered") {
      const blocks = (d.blocks || []).filter((block) => block.type !== "text" || block.text);
      return [who || h("span", { class: "who" }, "model"), blocks.length ? blocks.map(blockNode) : h("span", { class: "quiet" }, "had nothing to add")];
    }
    if (kind === "tool.answered") {
      return [who, h("details", { class: "out", open: wanted !== "" && (d.text || "").toLowerCase().includes(wanted) }, h("summary", {}, h("b", {}, d.rest?.name || "tool"), " ", marked(row[6].replace(/^\S+ (→|failed:) /, ""), wanted)), h("pre", {}, marked(d.text || "", wanted)))];
    }
    if (kind === "notice.raised" || kind === "child.reported" || kind === "conversation.compacted") return [h("span", { class: "who note" }, kind === "notice.raised" ? "notice" : kind === "child.reported" ? "report" : "compacted"), longText(d.text || row[6], wanted, 6)];
    return [who, h("span", { class: "line" }, marked(row[6], wanted))];
  }

  function blockNode(block) {
    if (block.type === "text") return longText(block.text || "", wanted);
    if (block.type === "thinking") return h("details", { class: "thought" }, h("summary", {}, "thought"), h("div", { class: "said-text" }, block.thinking || ""));
    if (block.type === "tool_use") return h("details", { class: "out" }, h("summary", {}, "→ ", h("b", {}, block.name), " ", marked(callSummary(block.input), wanted)), h("pre", {}, JSON.stringify(block.input, null, 2)));
    return h("pre", {}, JSON.stringify(block, null, 1));
  }

  /** Keep the row of the moment where it is while rows above it take their real height, until the reader scrolls. */
  function settle() {
    if (!anchor) return;
    if (anchor.last) { list.scrollTop = list.scrollHeight; return; }
    const top = anchor.node.offsetTop - list.offsetTop;
    if (top < list.scrollTop + 30 || top + anchor.node.offsetHeight > list.scrollTop + list.clientHeight - 30) list.scrollTop = Math.max(0, top - list.clientHeight * 0.7);
  }
  for (const kind of ["wheel", "touchmove", "pointerdown"]) list.addEventListener(kind, () => { anchor = null; }, { passive: true });

  /** Show the moment: later messages are pale, the last one is marked and in sight. */
  function at(place, force) {
    if (place === shownAt && !force) return;
    shownAt = place;
    const index = lastWhere(visible, (i) => i < place);
    const chunk = index >= 0 ? chunks[Math.floor(index / CHUNK)] : null;
    if (chunk) render(chunk);
    for (const node of list.querySelectorAll(".item")) {
      const i = Number(node.dataset.index);
      node.classList.toggle("future", i >= place);
      node.classList.toggle("now", index >= 0 && i === visible[index]);
    }
    anchor = chunk ? { node: chunk.node.children[index % CHUNK], last: index === visible.length - 1 } : null;
    if (anchor) settle(); else list.scrollTop = 0;
  }

  const box = h("input", { type: "search", placeholder: "Search  /", "aria-label": "Search the messages", oninput: (e) => { clearTimeout(box.timer); box.timer = setTimeout(() => { wanted = e.target.value.trim().toLowerCase(); choose(); }, 120); } });
  box.addEventListener("keydown", (e) => { if (e.key === "Enter") next(e.shiftKey ? -1 : 1); if (e.key === "Escape") { box.value = ""; wanted = ""; choose(); list.focus(); } });

  /** To the next or previous message that is shown: of a search, the next match. */
  function next(by) {
    const here = lastWhere(visible, (i) => i < act.place());
    const index = by > 0 ? here + 1 : here - 1;
    if (visible[index] !== undefined) act.seek(visible[index] + 1);
  }

  const chips = Object.keys(GROUP_NAMES).filter((g) => counts[g]).map((g) => {
    const chip = h("button", { class: "chip", "aria-pressed": String(on.has(g)), title: plural(counts[g], "message"), onclick: () => { if (on.has(g)) on.delete(g); else on.add(g); chip.setAttribute("aria-pressed", String(on.has(g))); choose(); } }, GROUP_NAMES[g]);
    return chip;
  });
  const who = m.sources.length > 1 ? h("select", { "aria-label": "Whose messages", onchange: (e) => { source = Number(e.target.value); choose(); } }, h("option", { value: -1 }, "all"), m.sources.map(([id, title], n) => h("option", { value: n }, n ? title || id : "main"))) : null;
  const node = h("section", { class: "card log", id: "log" }, h("div", { class: "card-head" }, h("h2", {}, "Messages"), found, h("div", { class: "noprint search" }, box)), h("div", { class: "chips noprint" }, chips, who), list);
  return { node, draw: choose, at, next, focus: () => box.focus(), printAll: () => { if (visible.length <= 3000) chunks.forEach(render); } };
}
