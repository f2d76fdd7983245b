// The little of Markdown that models write all the time: bold, code, headings, fences, tables. Makes nodes, never markup.

function inline(text, wanted) {
  const out = [];
  let from = 0;
  for (const match of text.matchAll(/`([^`\n]+)`|\*\*([^*\n]+)\*\*/g)) {
    out.push(
      marked(text.slice(from, match.index), wanted),
      match[1] !== undefined ? h("code", {}, marked(match[1], wanted)) : h("b", {}, marked(match[2], wanted)),
    );
    from = match.index + match[0].length;
  }
  return [...out, marked(text.slice(from), wanted)];
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());
const isRule = (line) => /^\s*\|?[\s:|-]*-[\s:|-]*$/.test(line) && line.includes("|");

function markdown(text, wanted) {
  const lines = text.split("\n"),
    out = [];
  let plain = [];
  const flush = () => {
    if (plain.length) out.push(h("div", {}, inline(plain.join("\n"), wanted)));
    plain = [];
  };
  for (let n = 0; n < lines.length; n++) {
    const line = lines[n],
      heading = /^#{1,6}\s+(.*)/.exec(line);
    if (/^\s*```/.test(line)) {
      const end = lines.findIndex((other, k) => k > n && /^\s*```\s*$/.test(other));
      flush();
      out.push(h("pre", {}, marked(lines.slice(n + 1, end < 0 ? lines.length : end).join("\n"), wanted)));
      n = end < 0 ? lines.length : end;
    } else if (heading) {
      flush();
      out.push(h("h4", {}, inline(heading[1], wanted)));
    } else if (line.includes("|") && n + 1 < lines.length && isRule(lines[n + 1])) {
      flush();
      let end = n + 2;
      while (end < lines.length && lines[end].includes("|")) end++;
      out.push(
        h(
          "table",
          {},
          h(
            "tr",
            {},
            cells(line).map((cell) => h("th", {}, inline(cell, wanted))),
          ),
          lines.slice(n + 2, end).map((row) =>
            h(
              "tr",
              {},
              cells(row).map((cell) => h("td", {}, inline(cell, wanted))),
            ),
          ),
        ),
      );
      n = end - 1;
    } else plain.push(line);
  }
  flush();
  return out;
}
