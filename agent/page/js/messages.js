// How one message looks: who spoke, text that may be long, calls of tools and their results, everything else on a line.

function marked(text, wanted) {
  if (!wanted) return text;
  const out = [],
    small = text.toLowerCase();
  let from = 0;
  for (let at = small.indexOf(wanted); at >= 0 && out.length < 200; at = small.indexOf(wanted, from)) {
    out.push(text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...out, text.slice(from)];
}

const toneOf = (m, row) => {
  const [kind] = m.kinds[row[3]],
    d = row[7] || {};
  if (kind === "todo.status") return d.now === "failed" && m.todo[d.id]?.handled ? "handled" : d.now;
  if (kind === "job.state")
    return d.state === "exited"
      ? d.rc === 0
        ? "completed"
        : d.signal && m.job[d.id]?.cancel
          ? "cancelled"
          : "failed"
      : d.state === "lost" || d.state === "refused"
        ? "failed"
        : "in_progress";
  if (kind === "session.status") return d.status;
  if (kind === "tool.answered") return d.rest?.is_error ? "failed" : "tool";
  return (
    {
      "approval.asked": "ask",
      "approval.answered": "ask",
      "model.failed": "failed",
      "job.cancel": "cancelled",
      "child.reported": "completed",
    }[kind] || ""
  );
};

/** Text that may be long: its beginning, and the rest behind a button. */
function longText(text, wanted, lines = 14) {
  const all = text.split("\n");
  if (all.length <= lines + 4 && text.length <= 1800) return h("div", { class: "said-text" }, markdown(text, wanted));
  const head = all.slice(0, lines).join("\n").slice(0, 1500);
  const node = h("div", { class: "said-text" }, markdown(head, wanted));
  node.append(
    h(
      "button",
      {
        class: "link more",
        onclick: (e) => {
          e.stopPropagation();
          node.replaceChildren(...markdown(text, wanted));
        },
      },
      `… ${amount(text.length - head.length)} more characters`,
    ),
  );
  return node;
}

const wordsOf = (v) => (Array.isArray(v) && v.every((word) => typeof word === "string") ? v.join(" ") : v);

/** What a tool was given, on a line: what comes first says most and needs no name. */
function callSummary(input) {
  if (!input || typeof input !== "object") return String(input ?? "");
  return Object.entries(input)
    .map(([k, v]) => [k, wordsOf(v)])
    .filter(([, v]) => ["string", "number", "boolean"].includes(typeof v))
    .map(([k, v], n) => `${n ? `${k}: ` : ""}${String(v).trim().split("\n")[0]}`)
    .join(", ")
    .slice(0, 160);
}

/** The same in full, texts as they read. */
function given(input) {
  if (!input || typeof input !== "object") return JSON.stringify(input);
  return Object.entries(input)
    .map(([k, v]) => [k, wordsOf(v)])
    .map(([k, v]) => `${k}: ${typeof v === "string" ? v : JSON.stringify(v, null, 1)}`)
    .join("\n");
}

/** What one message shows: talk as talk, everything else as a line. */
function contentOf(m, row, wanted) {
  const [kind] = m.kinds[row[3]];
  const d = row[7] || {};
  const who = row[0] ? h("span", { class: "who child-of" }, m.sources[row[0]][1] || m.sources[row[0]][0]) : null;
  if (kind === "operator.said") return [h("span", { class: "who you" }, "you"), longText(d.text || row[6], wanted)];
  if (kind === "model.answered") {
    const blocks = (d.blocks || [{ type: "text", text: row[6] }]).filter(
      (block) => block.type !== "text" || block.text,
    );
    return [
      who || h("span", { class: "who" }, "model"),
      blocks.length
        ? blocks.map((block) => blockNode(block, wanted))
        : h("span", { class: "quiet" }, "had nothing to add"),
    ];
  }
  if (!row[7]) return [who, h("span", { class: "line" }, marked(row[6], wanted))];
  if (kind === "tool.answered") {
    return [
      who,
      h(
        "details",
        { class: "out", open: wanted !== "" && (d.text || "").toLowerCase().includes(wanted) },
        h(
          "summary",
          {},
          h("b", {}, d.rest?.name || "tool"),
          " ",
          marked(row[6].replace(/^\S+ (→|failed:) /, ""), wanted),
        ),
        h("pre", {}, marked(d.text || "", wanted)),
      ),
    ];
  }
  if (kind === "notice.raised" || kind === "child.reported" || kind === "conversation.compacted")
    return [
      h(
        "span",
        { class: "who note" },
        kind === "notice.raised" ? "notice" : kind === "child.reported" ? "report" : "compacted",
      ),
      longText(d.text || row[6], wanted, 6),
    ];
  return [who, h("span", { class: "line" }, marked(row[6], wanted))];
}

function blockNode(block, wanted) {
  if (block.type === "text") return longText(block.text || "", wanted);
  if (block.type === "thinking")
    return h(
      "details",
      { class: "thought" },
      h("summary", {}, "thought"),
      h("div", { class: "said-text" }, block.thinking || ""),
    );
  if (block.type === "tool_use")
    return h(
      "details",
      { class: "out" },
      h("summary", {}, "→ ", h("b", {}, block.name), " ", marked(callSummary(block.input), wanted)),
      h("pre", {}, marked(given(block.input), wanted)),
    );
  return h("pre", {}, JSON.stringify(block, null, 1));
}
