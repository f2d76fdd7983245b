// The todo graph as it was: layers from left to right (on narrow screens from top to bottom), edges coloured by what they are.

const BOX = { w: 148, h: 46, gapX: 38, gapY: 14 };
const SLIM = { ...BOX, w: 128, gapX: 22 };
const cut = (text, n) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);

/** Nodes to draw: todos, and each for_each of more than four members as one. */
function nodesOf(m) {
  const sizes = new Map();
  for (const t of m.todos) if (t.group) sizes.set(t.group, (sizes.get(t.group) || 0) + 1);
  const nameOf = (t) => (t.group && sizes.get(t.group) > 4 ? `group ${t.group}` : t.id);
  const nodes = new Map();
  for (const t of m.todos) {
    const name = nameOf(t);
    const node = nodes.get(name) || { id: name, todos: [], edges: new Map(), kind: t.kind };
    node.todos.push(t);
    for (const [src, on] of t.after) {
      const from = nameOf(m.todo[src]);
      if (from !== name)
        node.edges.set(`${from} ${on}`, {
          from,
          on,
          pairs: [...(node.edges.get(`${from} ${on}`)?.pairs || []), [src, on]],
        });
    }
    nodes.set(name, node);
  }
  return nodes;
}

function layout(nodes) {
  const layer = new Map(),
    busy = new Set();
  const depth = (id) => {
    if (layer.has(id)) return layer.get(id);
    if (busy.has(id)) return 0;
    busy.add(id);
    const from = [...nodes.get(id).edges.values()].map((e) => depth(e.from) + 1);
    busy.delete(id);
    layer.set(id, from.length ? Math.max(...from) : 0);
    return layer.get(id);
  };
  for (const id of nodes.keys()) depth(id);
  const layers = [];
  for (const [id, at] of layer) (layers[at] ||= []).push(id);
  const place = new Map();
  const settle = (list) => list.forEach((id, index) => place.set(id, index - (list.length - 1) / 2));
  layers.forEach(settle);
  const next = new Map();
  for (const [id, node] of nodes)
    for (const e of node.edges.values()) next.set(e.from, [...(next.get(e.from) || []), id]);
  for (let sweep = 0; sweep < 4; sweep++) {
    const down = sweep % 2 === 0;
    for (const list of down ? layers : [...layers].reverse()) {
      const pull = (id) => {
        const near = down ? [...nodes.get(id).edges.values()].map((e) => e.from) : next.get(id) || [];
        return near.length ? near.reduce((sum, n) => sum + place.get(n), 0) / near.length : place.get(id);
      };
      const keyed = list.map((id, index) => [pull(id), index, id]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      list.splice(0, list.length, ...keyed.map((entry) => entry[2]));
      settle(list);
    }
  }
  return { layers, layer, place };
}

const MOST_BOXES = 80;
const AROUND = 14;

/** Of very many nodes those around a moment: what ran last, what runs, what came next. Edges to others are left out. */
function around(all, order, place) {
  if (all.size <= MOST_BOXES) return all;
  const begun = lastWhere(order, ([start]) => start < place) + 1;
  const near = order.slice(Math.max(0, begun - AROUND), begun + AROUND).map(([, id]) => id);
  const running = order
    .slice(0, begun)
    .filter(([, id]) => all.get(id).todos.some((t) => statusAt(t, place)?.[1] === "in_progress"));
  const chosen = new Set([...near, ...running.slice(-AROUND).map(([, id]) => id)]);
  const kept = new Map();
  for (const [id, node] of all) {
    if (chosen.has(id))
      kept.set(id, { ...node, edges: new Map([...node.edges].filter(([, edge]) => chosen.has(edge.from))) });
  }
  return kept;
}

/** Nodes by the row at which they first started, or were decided. */
function byStart(all) {
  const startOf = (t) =>
    (t.history.find(([, status]) => status === "in_progress") ||
      t.history.find(([, status]) => TERMINAL.has(status)) || [Infinity])[0];
  return [...all].map(([id, node]) => [Math.min(...node.todos.map(startOf)), id]).sort((a, b) => a[0] - b[0]);
}

function makeGraph(m, act) {
  if (!m.todos.length) return null;
  const all = nodesOf(m),
    order = byStart(all);
  const frame = h("div", { class: "graph-scroll", tabindex: "0", "aria-label": "todo graph" });
  const shown = new Map(),
    lines = [];
  let nodes, layers, layer, place, most, size, names;

  /** Choose the nodes of a moment; whether they are others than before. */
  function choose(moment) {
    const next = around(all, order, moment);
    const called = [...next.keys()].join("\n");
    if (called === names) return false;
    names = called;
    nodes = next;
    ({ layers, layer, place } = layout(nodes));
    most = Math.max(...layers.map((l) => l.length));
    size = layers.length > 6 ? SLIM : BOX;
    return true;
  }
  choose(act.place());

  function draw() {
    const tall = frame.clientWidth > 0 && frame.clientWidth < 560;
    const across = tall ? size.w + 20 : size.w + size.gapX,
      along = tall ? size.h + 34 : size.h + size.gapY;
    const at = (id) =>
      tall
        ? { x: (place.get(id) + (most - 1) / 2) * across, y: layer.get(id) * along }
        : { x: layer.get(id) * across, y: (place.get(id) + (most - 1) / 2) * along };
    const width = (tall ? most * across - 20 : layers.length * across - size.gapX) + 4;
    const height = (tall ? layers.length * along - 34 : most * along - size.gapY) + 4;
    const root = s("svg", {
      viewBox: `-2 -2 ${width} ${height}`,
      class: "graph-svg",
      style: { width: `${width}px`, minWidth: `${Math.round(width * 0.6)}px` },
      role: "img",
      "aria-label": "todo graph",
    });
    shown.clear();
    lines.length = 0;
    for (const [id, node] of nodes) {
      const to = at(id);
      for (const edge of node.edges.values()) {
        const from = at(edge.from);
        const a = tall
          ? { x: from.x + size.w / 2, y: from.y + size.h }
          : { x: from.x + size.w, y: from.y + size.h / 2 };
        const b = tall ? { x: to.x + size.w / 2, y: to.y } : { x: to.x, y: to.y + size.h / 2 };
        const bend = tall ? Math.max(14, (b.y - a.y) / 2) : Math.max(20, (b.x - a.x) / 2);
        const d = tall
          ? `M${a.x} ${a.y}C${a.x} ${a.y + bend} ${b.x} ${b.y - bend} ${b.x} ${b.y}`
          : `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`;
        const line = s(
          "path",
          { d, class: `edge on-${edge.on}` },
          s("title", {}, `${id} after ${edge.from}${edge.on === "success" ? "" : `, on ${edge.on}`}`),
        );
        lines.push([line, edge]);
        root.append(line);
      }
    }
    for (const [id, node] of nodes) root.append(box(id, node, at(id)));
    frame.replaceChildren(root);
    update(act.place());
  }

  function box(id, node, where) {
    const single = node.todos.length === 1 ? node.todos[0] : null;
    const name = single ? named(single.id) : `${id.slice(6)} × ${node.todos.length}`;
    const state = s("text", { class: "box-mark", x: 14, y: 20 });
    const under = s("text", { class: "box-under", x: 32, y: 36 });
    const bar = s("rect", { class: "box-bar", x: 0, y: size.h - 3, width: 0, height: 3 });
    const node_ = s(
      "g",
      {
        class: "box",
        "data-id": id,
        transform: `translate(${where.x} ${where.y})`,
        tabindex: "0",
        role: "button",
        onclick: () => single && act.open({ todo: single.id }),
        onkeydown: (e) => {
          if (e.key === "Enter" && single) act.open({ todo: single.id });
        },
      },
      s("rect", {
        class: `box-back kind-${node.kind}`,
        width: size.w,
        height: size.h,
        rx: node.kind === "gate" || node.kind === "race" ? 23 : 8,
      }),
      state,
      s("text", { class: "box-name", x: 32, y: 20 }, cut(name, Math.floor((size.w - 36) / 7.4))),
      under,
      single ? null : bar,
      s("title", {}, single ? `${single.title || single.id} (${single.kind})` : name),
    );
    shown.set(id, { g: node_, state, under, bar, node, single });
    return node_;
  }

  /** Bring what started last into sight, where the graph is wider or higher than its frame. */
  function centre(moment) {
    if (frame.scrollWidth <= frame.clientWidth && frame.scrollHeight <= frame.clientHeight) return;
    const begun = order.filter(([start, id]) => start < moment && shown.has(id)).pop();
    if (!begun) return;
    const box = shown.get(begun[1]).g.getBoundingClientRect(),
      view = frame.getBoundingClientRect();
    frame.scrollLeft += box.left - view.left - (view.width - box.width) / 2;
    frame.scrollTop += box.top - view.top - (view.height - box.height) / 2;
  }

  function update(at) {
    const now = at >= m.rows.length ? m.end : timeAt(m, at);
    for (const { g, state, under, bar, node, single } of shown.values()) {
      if (single) {
        const status = statusAt(single, at)?.[1];
        const seen = look(single, status);
        put(g, "class", `box st-${seen}`);
        say(state, MARKS[status] || "·");
        const attempt = single.attempts.filter((a) => a[0] <= now).pop();
        const took = attempt ? duration(Math.min(attempt[1] ?? now, now) - attempt[0]) : "";
        const kind = node.kind === "job" ? "" : node.kind;
        const words = [kind, status === "pending" ? "waits" : took || WORDS[status] || status || ""]
          .filter(Boolean)
          .join(" · ");
        say(under, cut(words, Math.floor((size.w - 32) / 5.6)));
      } else {
        const states = node.todos.map((t) => statusAt(t, at)?.[1]);
        const ended = states.filter((x) => TERMINAL.has(x)).length;
        const status = states.some((x) => x === "failed")
          ? "failed"
          : ended === states.length
            ? "completed"
            : states.some((x) => x === "in_progress") || ended
              ? "in_progress"
              : states.some(Boolean)
                ? "pending"
                : "unborn";
        put(g, "class", `box st-${status}`);
        say(state, MARKS[status] || "·");
        say(under, `${ended} of ${states.length}`);
        put(bar, "width", String((size.w * ended) / states.length));
      }
    }
    for (const [line, edge] of lines) {
      const states = edge.pairs.map(([src, on]) => edgeAt(m, src, on, at));
      const state = states.includes("open") ? "open" : states.includes("met") ? "met" : "dead";
      put(line, "class", `edge on-${edge.on} ${state}`);
    }
  }

  const node = h(
    "section",
    { class: "card graph", id: "graph" },
    h(
      "div",
      { class: "card-head" },
      h("h2", {}, "The todo graph"),
      h("span", { class: "moment quiet" }, ""),
      h(
        "div",
        { class: "legend" },
        h("span", {}, h("i", { class: "stroke met" }), "taken"),
        m.todos.some((t) => t.after.some(([, on]) => on === "failure"))
          ? h("span", {}, h("i", { class: "stroke fail" }), "on failure")
          : null,
      ),
    ),
    frame,
  );
  const moment = node.querySelector(".moment");
  return {
    node,
    draw,
    at: (place) => {
      const when = place >= m.rows.length ? "at the end" : `at ${clock(timeAt(m, place))}`;
      const changed = choose(place);
      moment.textContent = nodes === all ? when : `${when}, ${nodes.size} of ${all.size} around it`;
      if (changed) draw();
      else update(place);
      if (nodes !== all || place < m.rows.length) centre(place);
    },
  };
}
