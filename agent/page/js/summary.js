// The top of the page: what happened, what it cost, where the time went.

function verdict(m) {
  const count = (status) => m.todos.filter((t) => t.status === status).length;
  const state = m.session.status;
  const parts = [];
  if (m.todos.length) {
    parts.push(`${count("completed")} of ${plural(m.todos.length, "todo")} completed`);
    const handled = m.todos.filter((t) => t.status === "failed" && t.handled).length;
    const failed = count("failed") - handled;
    if (failed) parts.push(`${failed} failed`);
    if (handled) parts.push(`${handled} failed and the plan had an answer`);
    for (const status of ["cancelled", "skipped"]) if (count(status)) parts.push(`${count(status)} ${status}`);
    if (count("in_progress")) parts.push(`${count("in_progress")} running`);
  } else {
    const said = m.rows.filter((row) => m.kinds[row[3]][0] === "operator.said").length;
    parts.push(`${plural(said, "message")} of a person`);
    const failed = m.tools.filter(([, , , status]) => status === "failed").length;
    if (m.tools.length) parts.push(`${plural(m.tools.length, "tool call")}${failed ? `, ${amount(failed)} failed` : ""}`);
  }
  if (m.totals.retries) parts.push(plural(m.totals.retries, "retry", "retries"));
  const races = m.todos
    .filter((t) => t.kind === "race" && t.result?.winner)
    .map((t) => h("span", {}, " ", mono(t.result.winner), " won the race ", mono(t.id), "."));
  const verb =
    {
      completed: "Completed in",
      failed: "Failed after",
      cancelled: "Cancelled after",
      paused: "Paused after",
      running: m.session.live ? "Running for" : "Still open after",
    }[state] || state;
  const kept = m.session.format; // another program recorded it: what it came to is not known
  return h(
    "p",
    { class: "verdict" },
    h("b", { class: `tone ${state}` }, `${kept ? "Recorded over" : verb} ${duration(m.end)}`),
    ". ",
    parts.join(", "),
    ".",
    races,
    m.session.reason && !kept ? [" ", h("span", { class: "quiet" }, m.session.reason)] : null,
  );
}

function tile(name, value, under, title) {
  return h(
    "div",
    { class: "tile", title },
    h("div", { class: "tile-name" }, name),
    h("div", { class: "tile-value" }, value),
    h("div", { class: "tile-under" }, under),
  );
}

/** 940, 9,400, 94k, 9.4M. */
const tokens = (n) => (n >= 10_000 && n < 1e6 ? `${Math.round(n / 1000)}k` : amount(n));

function tiles(m) {
  const t = m.totals,
    out = [];
  const began = new Date(m.session.began * 1000);
  out.push(
    tile(
      "Took",
      duration(m.end),
      `from ${began.toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}`,
      began.toISOString(),
    ),
  );
  if (t.jobs)
    out.push(
      tile(
        "Jobs",
        String(t.jobs),
        `${duration(t.job_s)} of work${t.hosts.length ? ` on ${t.hosts.length > 2 ? plural(t.hosts.length, "host") : t.hosts.join(" and ")}` : ""}`,
      ),
    );
  if (t.gpus)
    out.push(
      tile(
        "GPU time",
        `${amount(t.gpu_s / 3600)} h`,
        `held on ${plural(t.gpus, "GPU")}, ${percent(t.gpu_s / (t.gpus * m.end))} of the time`,
        `${amount(t.gpu_s)} GPU seconds`,
      ),
    );
  if (t.calls) {
    const cost =
      t.cost === null
        ? "no price known"
        : `${t.cost.toFixed(t.cost < 1 ? 3 : 2)}${t.priced < t.calls ? " for some" : ""}`;
    out.push(
      tile(
        t.cost === null ? "Model" : "Model cost",
        t.cost === null ? `${tokens(t.in + t.out)} tokens` : cost,
        `${plural(t.calls, "call")}, ${tokens(t.in)} in${t.cached ? ` (${percent(t.cached / t.in)} cached)` : ""}, ${tokens(t.out)} out`,
      ),
    );
  }
  if (m.questions.length)
    out.push(tile("Waited for a person", duration(t.asked_s), plural(m.questions.length, "question")));
  if (m.children.length)
    out.push(
      tile(
        "Subagents",
        String(m.children.length),
        `${m.children.filter((c) => c.status === "completed").length} reported`,
      ),
    );
  if (t.jobs > 1 && m.end > 0) out.push(tile("At once", `${(t.job_s / m.end).toFixed(1)}×`, "jobs, on average"));
  return h("div", { class: "tiles" }, out);
}

/** The steps by name, the longest first; when none of very many stands out, by what they are. */
function longestOf(path, total) {
  const sum = (keyOf) => {
    const sums = new Map();
    for (const [sort, label, start, end, todo] of path) {
      const entry = sums.get(keyOf(sort, label)) || {
        sort,
        label: keyOf === bySort ? SORTS[sort] || sort : label,
        seconds: 0,
        todo,
      };
      entry.seconds += end - start;
      sums.set(keyOf(sort, label), entry);
    }
    return [...sums.values()].sort((a, b) => b.seconds - a.seconds);
  };
  const bySort = (sort) => sort;
  const named = sum((sort, label) => `${sort} ${label}`);
  const told = named.slice(0, 6).reduce((seconds, row) => seconds + row.seconds, 0);
  return told >= total / 3 ? { longest: named, byName: true } : { longest: sum(bySort), byName: false };
}

const MOST_STEPS = 300;

/** A chain of very many steps as pieces of one length, each shown as what took most of it. */
function drawable(path) {
  if (path.length <= MOST_STEPS) return path;
  const begin = path[0][2],
    size = (path[path.length - 1][3] - begin) / MOST_STEPS;
  const pieces = Array.from({ length: MOST_STEPS }, () => new Map());
  for (const [sort, , start, end] of path) {
    const last = Math.min(MOST_STEPS - 1, Math.floor((end - begin) / size));
    for (let n = Math.min(last, Math.floor((start - begin) / size)); n <= last; n++) {
      const within = Math.min(end, begin + (n + 1) * size) - Math.max(start, begin + n * size);
      pieces[n].set(sort, (pieces[n].get(sort) || 0) + within);
    }
  }
  const out = [];
  pieces.forEach((sums, n) => {
    const sort = [...sums].sort((a, b) => b[1] - a[1])[0]?.[0] || "idle";
    const before = out[out.length - 1];
    if (before && before[0] === sort) before[3] += size;
    else out.push([sort, SORTS[sort] || sort, begin + n * size, begin + (n + 1) * size, null]);
  });
  return out;
}

/** The chain of steps that decided how long it took: a bar in order of time, and the longest by name. */
function pathBar(m, act) {
  const total = m.path.reduce((sum, p) => sum + p[3] - p[2], 0);
  if (!m.path.length || total <= 0) return null;
  const bar = h("div", {
    class: m.path.length > 80 ? "path-bar dense" : "path-bar",
    role: "img",
    "aria-label": "steps that decided the duration, by time",
  });
  for (const [sort, label, start, end, todo] of drawable(m.path)) {
    const share = (end - start) / total;
    if (share < 0.0005) continue;
    bar.append(
      h(
        "button",
        {
          class: `seg sort-${sort}`,
          style: { flexGrow: String(share * 1000) },
          title: `${label}: ${duration(end - start)}, from ${clock(start)}`,
          onclick: () => act.seek(placeAt(m, start), todo),
        },
        share > 0.05 ? h("span", {}, label) : null,
      ),
    );
  }
  const { longest, byName } = longestOf(m.path, total);
  const shown = longest.slice(0, 6).filter((row) => row.seconds / total >= 0.005 || longest.length <= 3);
  const rest = longest.slice(shown.length).reduce((sum, row) => sum + row.seconds, 0);
  const list = h(
    "ol",
    { class: "path-list" },
    shown.map((row) =>
      h(
        "li",
        {},
        h("i", { class: `dot sort-${row.sort}` }),
        byName && row.todo
          ? h("button", { class: "link", onclick: () => act.open({ todo: row.todo }) }, row.label)
          : h("span", {}, row.label),
        h(
          "span",
          { class: "quiet" },
          byName && row.todo && !["job", "queue"].includes(row.sort) ? SORTS[row.sort] || "" : "",
        ),
        h("b", {}, duration(row.seconds)),
        h("span", { class: "share" }, percent(row.seconds / total)),
      ),
    ),
  );
  if (rest > 0 && rest / total >= 0.001)
    list.append(
      h(
        "li",
        { class: "quiet" },
        h("i", { class: "dot" }),
        h("span", {}, plural(longest.length - shown.length, "other")),
        h("span", {}, ""),
        h("b", {}, duration(rest)),
        h("span", { class: "share" }, percent(rest / total)),
      ),
    );
  return h(
    "section",
    { class: "card path" },
    h("h2", {}, "Where the time went"),
    h("p", { class: "hint" }, "The chain that decided how long it took; what ran beside it is in the lanes below."),
    bar,
    list,
  );
}

function questionsOf(m, act) {
  const open = m.questions.filter((q) => q.end === null);
  if (!open.length || !m.session.live) return null;
  return h(
    "section",
    { class: "card asks" },
    open.map((q) =>
      h(
        "p",
        {},
        h("b", {}, "asks "),
        q.text,
        " ",
        h("button", { class: "link", onclick: () => act.open({ todo: q.todo }) }, q.todo),
      ),
    ),
  );
}

function summary(m, act) {
  const live = m.session.live ? h("span", { class: "live" }, "live") : null;
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "title" },
      h(
        "h1",
        {},
        h("span", { class: `mark ${m.session.status}` }, MARKS[m.session.status] || "•"),
        " ",
        m.session.title,
        live,
      ),
      h(
        "p",
        { class: "quiet" },
        m.session.playbook ? [mono(m.session.playbook), " · "] : null,
        "session ",
        mono(m.session.id),
        m.session.format ? ` · recorded by ${m.session.format}` : "",
        ` · ${plural(m.rows.length, "message")}`,
      ),
    ),
    h(
      "div",
      { class: "buttons noprint" },
      h(
        "button",
        { class: "tool", title: "Light or dark (t)", onclick: act.theme, "aria-label": "Light or dark" },
        "◐",
      ),
      h("button", { class: "tool", title: "Keys (?)", onclick: act.help, "aria-label": "Keys" }, "?"),
    ),
    verdict(m),
    tiles(m),
  );
}
