// What jobs reported: a small chart for each number, all on one axis of time; and lists of numbers in results as bars.

const PLOT = { w: 300, h: 124, left: 6, right: 6, top: 17, bottom: 18 };

function chart(m, curve, act) {
  const points = curve.points;
  const values = points.map((p) => p[1]);
  const low = Math.min(...values),
    usual = [...values].sort((a, b) => a - b)[Math.floor(values.length * 0.9)];
  let high = Math.max(...values);
  if (low >= 0 && usual > 0 && high > 4 * usual) high = 2 * usual; // one outlier must not flatten the rest
  const zero = low >= 0 && (low < high * 0.5 || low === high) ? 0 : low;
  if (high === zero) high = zero + 1;
  const t0 = points[0][0],
    t1 = points[points.length - 1][0];
  const x = (t) => PLOT.left + (PLOT.w - PLOT.left - PLOT.right) * (t1 > t0 ? (t - t0) / (t1 - t0) : 0);
  const y = (v) =>
    PLOT.h - PLOT.bottom - ((PLOT.h - PLOT.top - PLOT.bottom) * (Math.min(v, high) - zero)) / (high - zero);
  const line = points.map(([t, v], n) => `${n ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const base = y(zero).toFixed(1);
  const dot = s("circle", { r: 3.5, class: "plot-dot", cx: x(t1), cy: y(values[values.length - 1]) });
  const value = h("b", {}, `${amount(values[values.length - 1])} ${curve.unit}`);
  const when = h("span", { class: "quiet" }, "last");
  const svg = s(
    "svg",
    {
      viewBox: `0 0 ${PLOT.w} ${PLOT.h}`,
      class: "plot-svg",
      role: "img",
      "aria-label": `${curve.name} of ${curve.todo || curve.job}`,
    },
    s("line", { x1: PLOT.left, x2: PLOT.w - PLOT.right, y1: base, y2: base, class: "plot-axis" }),
    s("path", { d: `${line}L${x(t1).toFixed(1)} ${base}L${x(t0).toFixed(1)} ${base}Z`, class: "plot-area" }),
    s("path", { d: line, class: "plot-line" }),
    dot,
    s("text", { x: PLOT.left, y: PLOT.h - 4, class: "plot-text" }, clock(t0)),
    s("text", { x: PLOT.w - PLOT.right, y: PLOT.h - 4, class: "plot-text end" }, clock(t1)),
    s("text", { x: PLOT.left, y: 9, class: "plot-text" }, zero ? `${amount(zero)} to ${amount(high)}` : amount(high)),
  );
  const show = (n) => {
    dot.setAttribute("cx", x(points[n][0]));
    dot.setAttribute("cy", y(points[n][1]));
    value.textContent = `${amount(points[n][1])} ${curve.unit}`;
    when.textContent = n === points.length - 1 ? "last" : `at ${clock(points[n][0])}`;
  };
  svg.addEventListener("pointermove", (e) => {
    const frame = svg.getBoundingClientRect();
    const t =
      t0 +
      (t1 - t0) *
        clamp(
          (((e.clientX - frame.left) / frame.width) * PLOT.w - PLOT.left) / (PLOT.w - PLOT.left - PLOT.right),
          0,
          1,
        );
    const after = lastWhere(points, (p) => p[0] <= t);
    show(
      after < 0 ? 0 : after + 1 < points.length && points[after + 1][0] - t < t - points[after][0] ? after + 1 : after,
    );
  });
  svg.addEventListener("pointerleave", () => show(points.length - 1));
  svg.addEventListener("click", () => act.seek(placeAt(m, t1)));
  return h(
    "figure",
    { class: "plot" },
    h(
      "figcaption",
      {},
      h("span", { class: "plot-name" }, curve.name),
      h("span", { class: "plot-value" }, value, " ", when),
    ),
    svg,
  );
}

function bars(name, values) {
  const high = Math.max(...values, 0),
    low = Math.min(...values, 0),
    span = high - low || 1;
  const w = (PLOT.w - 12) / values.length,
    zero = 14 + (82 * high) / span;
  const svg = s(
    "svg",
    { viewBox: `0 0 ${PLOT.w} ${PLOT.h}`, class: "plot-svg", role: "img", "aria-label": name },
    values.map((v, n) => {
      const tall = Math.max(1, Math.abs((82 * v) / span));
      return [
        s(
          "rect",
          {
            class: "plot-bar",
            x: 6 + n * w + w * 0.12,
            width: w * 0.76,
            y: v >= 0 ? zero - tall : zero,
            height: tall,
            rx: Math.min(3, w * 0.2),
          },
          s("title", {}, `${n + 1}: ${v}`),
        ),
        values.length <= 10
          ? s("text", { class: "plot-text mid", x: 6 + (n + 0.5) * w, y: PLOT.h - 4 }, amount(v))
          : null,
      ];
    }),
  );
  return h(
    "figure",
    { class: "plot" },
    h(
      "figcaption",
      {},
      h("span", { class: "plot-name" }, name),
      h("span", { class: "plot-value quiet" }, plural(values.length, "value")),
    ),
    svg,
  );
}

const grid = (charts) => (charts.length ? h("div", { class: "plot-grid" }, charts) : null);

/** Charts of one todo: what its jobs reported, then the lists in its result. */
function chartsOf(m, todo, act) {
  const drawn = m.curves.filter((c) => c.todo === todo.id).map((c) => chart(m, c, act));
  return [
    ...drawn,
    ...Object.entries(todo.bars || {})
      .slice(0, 6)
      .map(([name, values]) => bars(name, values)),
  ];
}

function makePlots(m, act) {
  const parts = m.todos.map((t) => [t, chartsOf(m, t, act)]).filter(([, charts]) => charts.length);
  if (!parts.length) return null;
  const shown = parts.slice(0, 24);
  const node = h(
    "section",
    { class: "card plots", id: "plots" },
    h("div", { class: "card-head" }, h("h2", {}, "What jobs reported")),
    shown.map(([t, charts]) =>
      h(
        "div",
        { class: "plot-group" },
        h(
          "h3",
          {},
          h("button", { class: "link", onclick: () => act.open({ todo: t.id }) }, t.id),
          h("span", { class: "quiet" }, ` ${t.title && t.title !== t.id ? t.title : ""}`),
        ),
        grid(charts),
      ),
    ),
    parts.length > shown.length
      ? h("p", { class: "quiet" }, `and ${parts.length - shown.length} more: open a todo to see its charts`)
      : null,
  );
  return { node };
}
