// One thing in full, at the side: a todo, a job, a subagent or a message.

const fact = (name, value) =>
  value === null || value === undefined || value === "" ? null : [h("dt", {}, name), h("dd", {}, value)];

/** A value as a person reads it: numbers short, lists of numbers in a line, nothing for null, JSON for the rest. */
function shownValue(v) {
  if (v === null || v === undefined) return null;
  if (typeof v === "number") return amount(v);
  if (typeof v !== "object") return String(v);
  if (Array.isArray(v) && v.every((x) => typeof x === "number")) return v.map(amount).join(", ");
  return Object.keys(v).length ? h("pre", {}, JSON.stringify(v, null, 1)) : null;
}

function facts(value) {
  if (value === null || typeof value !== "object") return String(value);
  return h(
    "dl",
    { class: "facts" },
    Object.entries(value).map(([k, v]) => fact(k, shownValue(v))),
  );
}

function makeDetail(m, act) {
  let current = null;
  const body = h("div", { class: "detail-body" });
  const node = h(
    "aside",
    { class: "detail noprint", hidden: true, "aria-label": "details" },
    h("button", { class: "tool close", onclick: close, "aria-label": "Close", title: "Close (Escape)" }, "✕"),
    body,
  );
  const link = (text, what) => h("button", { class: "link", onclick: () => act.open(what) }, text);
  const moment = (time) => h("button", { class: "link", onclick: () => act.seek(placeAt(m, time)) }, clock(time));

  function todo(t) {
    const races = m.races[t.id] ? ["in the race ", link(m.races[t.id], { todo: m.races[t.id] })] : null;
    const after = t.after.map(([src, on]) =>
      h("span", { class: "edge-name" }, link(src, { todo: src }), on === "success" ? "" : ` on ${on}`),
    );
    const next = m.todos.filter((other) => other.after.some(([src]) => src === t.id));
    return [
      h("h2", {}, h("span", { class: `mark ${look(t, t.status)}` }, MARKS[t.status]), " ", t.id),
      h("p", { class: "lead" }, t.title),
      t.last[2] ? h("p", { class: `reason ${look(t, t.status)}` }, t.last[2]) : null,
      h(
        "dl",
        { class: "facts" },
        fact("kind", `${t.kind}, ${t.priority} priority`),
        fact("after", after.length ? [after, t.join === "any" && after.length > 1 ? " (any)" : ""] : null),
        fact("race", races),
        fact(
          "before",
          next.length
            ? next.slice(0, 12).map((other) => h("span", { class: "edge-name" }, link(other.id, { todo: other.id })))
            : null,
        ),
      ),
      t.result && Object.keys(t.result).length ? [h("h3", {}, "Result"), facts(t.result)] : null,
      grid(chartsOf(m, t, act)),
      t.attempts.length
        ? [
            h("h3", {}, "Attempts"),
            h(
              "ul",
              { class: "plain" },
              t.attempts.map(([start, end, status, host, attempt, note]) =>
                h(
                  "li",
                  {},
                  moment(start),
                  ` try ${attempt}${host ? ` on ${host}` : ""}: ${WORDS[status] || status} after ${duration((end ?? m.end) - start)}`,
                  note ? h("div", { class: "quiet" }, note) : null,
                ),
              ),
            ),
          ]
        : null,
      (m.jobsOf[t.id] || []).length
        ? [
            h("h3", {}, "Jobs"),
            h(
              "ul",
              { class: "plain" },
              m.jobsOf[t.id].map((j) =>
                h(
                  "li",
                  {},
                  link(j.id, { job: j.id }),
                  ` ${j.status}${j.rc === null || j.rc === undefined ? "" : ` with ${j.rc}`}`,
                ),
              ),
            ),
          ]
        : null,
      h("h3", {}, "What it is"),
      h("pre", {}, t.body.run || t.body.gate || t.body.question || t.body.prompt || JSON.stringify(t.body, null, 1)),
    ];
  }

  function job(j) {
    return [
      h("h2", {}, "Job ", j.todo, j.attempt > 1 ? `, try ${j.attempt}` : ""),
      h("p", { class: "lead" }, mono(j.id)),
      j.note ? h("p", { class: "reason" }, j.note) : null,
      h(
        "dl",
        { class: "facts" },
        fact("todo", link(j.todo, { todo: j.todo })),
        fact("host", j.host),
        fact("GPUs", j.gpus?.length ? j.gpus.join(", ") : null),
        fact(
          "state",
          `${j.status}${j.rc === null || j.rc === undefined ? "" : `, exit code ${j.rc}`}${j.signal ? `, ${j.signal}` : ""}`,
        ),
        fact("sent", moment(j.submitted)),
        fact("ran", [moment(j.start), ` for ${duration((j.end ?? m.end) - j.start)}`]),
        fact("ready", j.ready === null ? null : moment(j.ready)),
        fact("stopped", j.cancel),
      ),
      grid(m.curves.filter((c) => c.job === j.id).map((c) => chart(m, c, act))),
      h("h3", {}, "Log"),
      j.log
        ? [j.log.note ? h("p", { class: "quiet" }, j.log.note) : null, h("pre", { class: "joblog" }, j.log.text)]
        : reported(j),
      h("h3", {}, "Command"),
      h("pre", {}, j.run),
    ];
  }

  /** Without its log: what it said of itself while it ran. */
  function reported(j) {
    const kind = m.kinds.findIndex(([name]) => name === "job.reported");
    const lines = m.rows.filter((row) => row[3] === kind && row[7]?.id === j.id && row[7].line);
    const text = lines
      .map((row) => `${clock(row[2] - j.start).padStart(8)}  ${row[7].line}`)
      .filter((line, n, all) => !n || line.slice(10) !== all[n - 1].slice(10))
      .join("\n");
    return [
      h(
        "p",
        { class: "quiet" },
        text ? "Lines that it reported while it ran; the whole log is on its host: " : "The log is on its host: ",
        mono(`turnout logs ${j.id}`),
      ),
      text ? h("pre", { class: "joblog" }, text) : null,
    ];
  }

  function message(index) {
    const row = m.rows[index],
      [kind] = m.kinds[row[3]],
      d = row[7];
    const cause = row[5] ? m.rows.findIndex((other) => other[0] === row[0] && other[1] === row[5]) : -1;
    return [
      h("h2", {}, `Message ${row[1]}`),
      h("p", { class: "lead" }, mono(kind), " by ", mono(m.actors[row[4]])),
      h(
        "dl",
        { class: "facts" },
        fact("time", `${clock(row[2])}, ${new Date((m.session.began + row[2]) * 1000).toLocaleString()}`),
        fact("session", row[0] ? m.sources[row[0]][0] : null),
        fact("because of", cause < 0 ? null : link(`${row[5]}: ${m.rows[cause][6].slice(0, 80)}`, { row: cause })),
        fact(
          "todo",
          d?.id && m.todo[d.id]
            ? link(d.id, { todo: d.id })
            : d?.todo && m.todo[d.todo]
              ? link(d.todo, { todo: d.todo })
              : null,
        ),
        fact("job", d?.id && m.job[d.id] ? link(d.id, { job: d.id }) : null),
      ),
      d?.text !== undefined
        ? h("pre", { class: "said-text" }, d.text)
        : (d?.blocks || []).map((b) =>
            b.type === "tool_use"
              ? h("pre", {}, `→ ${b.name}\n${given(b.input)}`)
              : h("pre", { class: "said-text" }, b.text || b.thinking || JSON.stringify(b, null, 1)),
          ),
      h("h3", {}, "Payload"),
      h("pre", {}, JSON.stringify(d?.rest ?? d, null, 1)),
    ];
  }

  function open(what) {
    const child = what.child ? m.sources.findIndex(([id]) => id === what.child) : -1;
    const made = what.todo
      ? todo(m.todo[what.todo])
      : what.job
        ? job(m.job[what.job])
        : child > 0
          ? message(m.rows.findIndex((row) => row[0] === child))
          : what.row !== undefined
            ? message(what.row)
            : null;
    if (!made) return;
    current = what;
    body.replaceChildren(
      ...[made]
        .flat(4)
        .filter((x) => x !== null && x !== undefined && x !== false)
        .map((x) => (x instanceof Node ? x : document.createTextNode(x))),
    );
    body.scrollTop = 0;
    node.hidden = false;
    document.documentElement.classList.add("detail-open");
  }
  function close() {
    node.hidden = true;
    current = null;
    document.documentElement.classList.remove("detail-open");
  }
  return { node, open, close, shown: () => current };
}
