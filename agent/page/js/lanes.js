// Draws the time lanes: labels at the left, bars on an axis of time that can be widened, the moment as a needle.

function makeLanes(m, act, kept) {
  const { lanes: all, todos } = lanesOf(m);
  const few = todos > MOST_LANES ? [...shared(m, all.slice(0, todos)), ...all.slice(todos)] : all;
  let { zoom, everything, folding } = kept || { zoom: 1, everything: false, folding: true };
  let scale = scaleOf(m, folding);
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
    if (b.depth > 1) {
      style.top = `${((100 * b.lane) / b.depth).toFixed(2)}%`;
      style.height = `${(100 / b.depth).toFixed(2)}%`;
    }
    const room = share(b.start, b.end) * zoom;
    return h(
      "button",
      {
        class: `bar ${b.cls}${b.end === null ? " open" : ""}`,
        style,
        title: b.title,
        tabindex: "-1",
        onclick: (e) => {
          e.stopPropagation();
          if (b.open) act.open(b.open);
          else act.seek(placeAt(m, b.start));
        },
      },
      b.text && room * track() > 42 ? h("span", {}, b.text) : null,
    );
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
      const label = h(
        "button",
        {
          class: `lane-name kind-${lane.kind}`,
          title: lane.todo?.title || lane.name,
          onclick: () => lane.open && act.open(lane.open),
        },
        h("i", { class: "lane-mark" }),
        h("span", { class: "lane-id" }, lane.name),
        lane.note ? h("span", { class: "lane-note" }, lane.note) : null,
      );
      if (lane.todo) names.set(lane.todo.id, label);
      const track = h(
        "div",
        { class: "track", style: { height: `${lane.height || 20}px` } },
        lane.bars.map((b) => bar(b, lane.height)),
        (lane.marks || []).map((mark) =>
          h("i", { class: `point ${mark.cls}`, style: { left: x(mark.at) }, title: mark.title }),
        ),
      );
      return h("div", { class: `lane ${lane.kind}` }, label, track);
    });
    inner.style.setProperty("--zoom", zoom);
    over.replaceChildren(
      ...m.absences.map(([start, end, note]) =>
        h(
          "div",
          { class: "absence", style: { left: x(start), width: width(start, end) }, title: note },
          folding && scale.gaps.some((gap) => gap[0] === start)
            ? h("span", {}, `${note} ${duration((end ?? m.end) - start)}`)
            : null,
        ),
      ),
      shade,
      needle,
    );
    inner.replaceChildren(
      h("div", { class: "lane axis" }, h("div", { class: "lane-name" }), h("div", { class: "track" }, ticks)),
      ...rows,
      h("div", { class: "over-frame" }, over),
    );
    more.hidden = few === all;
    more.textContent = everything ? "share lanes" : "a lane for each todo";
    at(act.place());
  }

  function setZoom(next, centre) {
    const before = zoom,
      track = inner.clientWidth;
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

  const more = h("button", {
    class: "link",
    onclick: () => {
      everything = !everything;
      draw();
    },
  });
  inner.addEventListener("click", (e) => {
    const frame = over.getBoundingClientRect();
    if (e.clientX < frame.left || e.target.closest(".lane-name")) return;
    act.seek(placeAt(m, scale.back(clamp((e.clientX - frame.left) / frame.width, 0, 1))));
  });
  scroll.addEventListener(
    "wheel",
    (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      const frame = over.getBoundingClientRect();
      setZoom(zoom * (e.deltaY < 0 ? 1.3 : 1 / 1.3), clamp((e.clientX - frame.left) / frame.width, 0, 1));
    },
    { passive: false },
  );
  const keys = [
    ["−", "Narrow (-)", () => setZoom(zoom / 1.6)],
    ["+", "Widen (+)", () => setZoom(zoom * 1.6)],
    ["⤢", "Whole session (0)", () => setZoom(1)],
  ];
  if (scale.gaps.length)
    keys.unshift([
      "≈",
      "Times without anybody narrow, or true to scale",
      () => {
        folding = !folding;
        draw();
      },
    ]);
  const node = h(
    "section",
    { class: "card lanes", id: "lanes" },
    h(
      "div",
      { class: "card-head" },
      h("h2", {}, "What ran when"),
      legend(m),
      h(
        "div",
        { class: "buttons noprint" },
        keys.map(([text, title, go]) => h("button", { class: "tool", title, "aria-label": title, onclick: go }, text)),
      ),
    ),
    scroll,
    more,
  );
  return {
    node,
    draw,
    at,
    zoom: (factor) => setZoom(factor ? zoom * factor : 1),
    state: () => ({ zoom, everything, folding }),
  };
}

function legend(m) {
  const has = (status) => m.todos.some((t) => look(t, t.status) === status);
  const names = {
    completed: "completed",
    in_progress: "running",
    failed: "failed",
    handled: "failed, answered",
    cancelled: "cancelled",
  };
  return h(
    "div",
    { class: "legend" },
    Object.entries(names)
      .filter(([status]) => has(status))
      .map(([status, word]) => h("span", {}, h("i", { class: `key ${status}` }), word)),
    m.jobs.length ? h("span", {}, h("i", { class: "key jobkey" }), "its job") : null,
    m.absences.length ? h("span", {}, h("i", { class: "key absence" }), "nobody drove it") : null,
  );
}
