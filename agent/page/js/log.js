// The messages, in order: talk in full, everything else on a line; filtered, searched, and drawn only where one looks.

const CHUNK = 60;
const GROUP_NAMES = {
  talk: "Talk",
  todos: "Todos",
  jobs: "Jobs",
  reports: "Reports",
  session: "Session",
  details: "Details",
  other: "Other",
};
const OFF_AT_FIRST = new Set(["reports", "details"]);

function makeLog(m, act, kept) {
  const counts = {};
  for (const row of m.rows) {
    const group = m.kinds[row[3]][1];
    counts[group] = (counts[group] || 0) + 1;
  }
  const on = new Set(Object.keys(counts).filter((g) => !(kept ? kept.off : OFF_AT_FIRST).has(g)));
  let wanted = kept?.wanted || "",
    visible = [],
    hidden = 0,
    anchor = null,
    chunks = [],
    shownAt = -1,
    source = kept?.source ?? -1;
  const list = h("div", { class: "log-list", tabindex: "0", "aria-label": "messages" });
  const found = h("button", {
    class: "quiet found",
    onclick: () => {
      for (const g of Object.keys(counts)) on.add(g);
      chips.forEach((chip) => chip.setAttribute("aria-pressed", "true"));
      choose();
    },
  });
  const watcher = new IntersectionObserver(
    (seen) => {
      for (const one of seen) if (one.isIntersecting) render(one.target.chunk);
      settle();
    },
    { root: list, rootMargin: "600px" },
  );

  function choose() {
    visible = [];
    hidden = 0;
    m.rows.forEach((row, index) => {
      const chosen = on.has(m.kinds[row[3]][1]) && (source < 0 || row[0] === source);
      if ((!chosen && !wanted) || (wanted && !textOf(m, index).includes(wanted))) return;
      if (chosen) visible.push(index);
      else hidden++;
    });
    watcher.disconnect();
    chunks = [];
    for (let from = 0; from < visible.length; from += CHUNK) {
      const part = visible.slice(from, from + CHUNK);
      const node = h("div", { class: "chunk", style: { minHeight: `${part.length * 27}px` } });
      node.chunk = { part, node, drawn: false };
      chunks.push(node.chunk);
    }
    list.replaceChildren(
      ...(chunks.length
        ? chunks.map((c) => c.node)
        : [h("p", { class: "empty" }, wanted ? `Nothing says “${wanted}”.` : "Nothing is selected.")]),
    );
    chunks.forEach((c) => watcher.observe(c.node));
    found.textContent = wanted
      ? `${plural(visible.length, "match", "matches")}${hidden ? `, ${hidden} hidden` : ""}`
      : "";
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
    const row = m.rows[index],
      [kind, group] = m.kinds[row[3]];
    const when = h(
      "span",
      { class: "when", title: new Date((m.session.began + row[2]) * 1000).toISOString() },
      clock(row[2]),
    );
    const number = h("span", { class: "seq" }, row[0] ? `${m.sources[row[0]][0].slice(0, 4)}·${row[1]}` : row[1]);
    const classes = `item ${group} tone-${toneOf(m, row)} k-${kind.replace(".", "-")}${index >= place ? " future" : ""}${index === place - 1 ? " now" : ""}${row[0] ? " child" : ""}`;
    return h(
      "div",
      {
        class: classes,
        "data-index": index,
        onclick: (e) => {
          if (!e.target.closest("summary,.more") && !String(getSelection())) act.open({ row: index }, true);
        },
      },
      number,
      when,
      h("div", { class: "what" }, contentOf(m, row, wanted)),
    );
  }

  /** Keep the row of the moment where it is while rows above it take their real height, until the reader scrolls. */
  function settle() {
    if (!anchor) return;
    if (anchor.top) {
      list.scrollTop = anchor.node.offsetTop - list.offsetTop;
      return;
    }
    if (anchor.last) {
      list.scrollTop = list.scrollHeight;
      return;
    }
    const top = anchor.node.offsetTop - list.offsetTop;
    if (top < list.scrollTop + 30 || top + anchor.node.offsetHeight > list.scrollTop + list.clientHeight - 30)
      list.scrollTop = Math.max(0, top - list.clientHeight * 0.7);
  }
  for (const kind of ["wheel", "touchmove", "pointerdown"])
    list.addEventListener(
      kind,
      () => {
        anchor = null;
      },
      { passive: true },
    );

  /** The first message in sight, when the reader has scrolled there. */
  function topIndex() {
    if (anchor) return anchor.top ? Number(anchor.node.dataset.index) : null;
    const node = [...list.querySelectorAll(".item")].find(
      (one) => one.offsetTop - list.offsetTop + one.offsetHeight > list.scrollTop,
    );
    return node ? Number(node.dataset.index) : null;
  }

  /** Bring a message to the top, and keep it there. */
  function toTop(index) {
    const at = lastWhere(visible, (i) => i <= index);
    if (at < 0) return;
    const chunk = chunks[Math.floor(at / CHUNK)];
    render(chunk);
    anchor = { node: chunk.node.children[at % CHUNK], top: true };
    settle();
  }

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
    if (anchor) settle();
    else {
      if (chunks.length) render(chunks[0]);
      list.scrollTop = 0;
    }
  }

  const box = h("input", {
    type: "search",
    placeholder: "Search  /",
    value: wanted,
    "aria-label": "Search the messages",
    oninput: (e) => {
      clearTimeout(box.timer);
      box.timer = setTimeout(() => {
        wanted = e.target.value.trim().toLowerCase();
        choose();
      }, 120);
    },
  });
  box.addEventListener("keydown", (e) => {
    if (e.key === "Enter") next(e.shiftKey ? -1 : 1);
    if (e.key === "Escape") {
      box.value = "";
      wanted = "";
      choose();
      list.focus();
    }
  });

  /** To the next or previous message that is shown: of a search, the next match. */
  function next(by) {
    const here = lastWhere(visible, (i) => i < act.place());
    const index = by > 0 ? here + 1 : here - 1;
    if (visible[index] !== undefined) act.seek(visible[index] + 1);
  }

  const chips = Object.keys(GROUP_NAMES)
    .filter((g) => counts[g])
    .map((g) => {
      const chip = h(
        "button",
        {
          class: "chip",
          "aria-pressed": String(on.has(g)),
          title: plural(counts[g], "message"),
          onclick: () => {
            if (on.has(g)) on.delete(g);
            else on.add(g);
            chip.setAttribute("aria-pressed", String(on.has(g)));
            choose();
          },
        },
        GROUP_NAMES[g],
      );
      return chip;
    });
  const who =
    m.sources.length > 1
      ? h(
          "select",
          {
            "aria-label": "Whose messages",
            onchange: (e) => {
              source = Number(e.target.value);
              choose();
            },
          },
          h("option", { value: -1 }, "all"),
          m.sources.map(([id, title], n) =>
            h("option", { value: n, selected: n === source }, n ? title || id : "main"),
          ),
        )
      : null;
  const node = h(
    "section",
    { class: "card log", id: "log" },
    h("div", { class: "card-head" }, h("h2", {}, "Messages"), found, h("div", { class: "noprint search" }, box)),
    h("div", { class: "chips noprint" }, chips, who),
    list,
  );
  return {
    node,
    draw: () => {
      choose();
      if (kept && kept.top !== null) toTop(kept.top);
    },
    state: () => ({
      off: new Set(Object.keys(GROUP_NAMES).filter((g) => (counts[g] ? !on.has(g) : OFF_AT_FIRST.has(g)))),
      wanted,
      source,
      top: topIndex(),
    }),
    at,
    next,
    focus: () => box.focus(),
    printAll: () => {
      if (visible.length <= 3000) chunks.forEach(render);
    },
  };
}
