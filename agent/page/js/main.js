// Puts the parts together: the moment that is shown, the keys, playing, the theme, and what a running session adds.

const KEYS = [
  ["← →", "one message back, on"],
  ["Shift ← →", "ten messages"],
  ["Home End", "begin, end"],
  ["Space", "play, pause"],
  ["< >", "slower, faster"],
  ["g", "go to a message number, a time (12:30, 90s) or a todo"],
  ["/", "search; Enter: next match"],
  ["n N", "next, previous shown message"],
  ["+ − 0", "widen, narrow the lanes, all of it"],
  ["t", "light, dark, as the system"],
  ["?", "these keys"],
  ["Esc", "close"],
];

/** Draw a model. `kept` is what `state` of the page before it said: a page that moves stays as the reader left it. */
function start(model, kept) {
  const m = prepare(model);
  const app = document.getElementById("app");
  let follow = kept?.follow ?? true,
    place = follow ? m.rows.length : kept.place;

  const act = {
    place: () => place,
    seek(next, todo) {
      place = clamp(Math.round(next), 0, m.rows.length);
      follow = place === m.rows.length;
      show();
      if (todo) detail.open({ todo });
    },
    open(what, go) {
      detail.open(what);
      if (go && what.row !== undefined) act.seek(what.row + 1);
    },
    theme() {
      const order = ["", "dark", "light"];
      const next = order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % 3];
      document.documentElement.dataset.theme = next;
      remember("theme", next);
    },
    help: () => (help.open ? help.close() : help.showModal()),
    goTo,
  };

  const detail = makeDetail(m, act),
    lanes = makeLanes(m, act, kept?.lanes),
    graph = makeGraph(m, act),
    log = makeLog(m, act, kept?.log),
    plots = makePlots(m, act),
    player = makePlayer(m, act);
  const help = h(
    "dialog",
    { class: "help" },
    h("h2", {}, "Keys"),
    h(
      "dl",
      { class: "facts" },
      KEYS.map(([key, what]) => fact(key, what)),
    ),
    h("form", { method: "dialog" }, h("button", { class: "tool wide" }, "Close")),
  );
  app.replaceChildren(
    summary(m, act),
    questionsOf(m, act) || "",
    h(
      "main",
      { class: `columns${m.rows.length ? "" : " bare"}` },
      h("div", { class: "left" }, pathBar(m, act) || "", lanes.node, graph?.node || "", plots?.node || "", made(m)),
      h("div", { class: "right" }, log.node),
    ),
    player.node,
    detail.node,
    help,
  );

  function show() {
    player.at(place);
    lanes.at(place);
    graph?.at(place);
    log.at(place);
  }

  function goTo() {
    const wanted = prompt("Message number, time (12:30, 90s) or todo:");
    if (!wanted) return;
    const found = findPlace(m, wanted);
    if (found === null) alert(`“${wanted}” is no message number, time or todo of this session.`);
    else act.seek(found, m.todo[wanted.trim()] ? wanted.trim() : undefined);
  }
  const keys = {
    ArrowLeft: (e) => act.seek(place - (e.shiftKey ? 10 : 1)),
    ArrowRight: (e) => act.seek(place + (e.shiftKey ? 10 : 1)),
    Home: () => act.seek(0),
    End: () => act.seek(m.rows.length),
    " ": player.toggle,
    "<": () => player.faster(-1),
    ">": () => player.faster(1),
    g: goTo,
    "/": log.focus,
    n: () => log.next(1),
    N: () => log.next(-1),
    "+": () => lanes.zoom(1.6),
    "=": () => lanes.zoom(1.6),
    "-": () => lanes.zoom(1 / 1.6),
    0: () => lanes.zoom(0),
    t: act.theme,
    "?": act.help,
    Escape: () => detail.close(),
  };
  const onKey = (e) => {
    if (
      e.ctrlKey ||
      e.metaKey ||
      e.altKey ||
      (/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== "range")
    )
      return;
    if (e.target.tagName === "BUTTON" && (e.key === " " || e.key === "Enter")) return;
    const go = keys[e.key];
    if (!go) return;
    e.preventDefault();
    go(e);
  };
  document.addEventListener("keydown", onKey);
  const onPrint = () => log.printAll();
  addEventListener("beforeprint", onPrint);

  const column = app.querySelector(".right");
  const fit = () => {
    // the messages end above the player, wherever the page is scrolled to
    const beside = getComputedStyle(column).position === "sticky";
    log.node.style.height = beside
      ? `${Math.max(320, innerHeight - Math.max(14, column.getBoundingClientRect().top) - 66)}px`
      : "";
  };
  addEventListener("scroll", fit, { passive: true });
  addEventListener("resize", fit);
  let wide = 0;
  const sized = new ResizeObserver(() => {
    if (app.clientWidth !== wide) {
      wide = app.clientWidth;
      lanes.draw();
      graph?.draw();
    }
  });
  sized.observe(app);
  lanes.draw();
  graph?.draw();
  fit();
  log.draw();
  show();
  if (kept?.detail) detail.open(kept.detail);
  if (location.hash && !kept) {
    const found = findPlace(m, decodeURIComponent(location.hash.slice(1)));
    if (found !== null) act.seek(found);
  }
  return {
    state: () => ({
      rows: m.rows.length,
      place,
      follow,
      lanes: lanes.state(),
      log: log.state(),
      detail: detail.shown(),
    }),
    leave() {
      document.removeEventListener("keydown", onKey);
      removeEventListener("beforeprint", onPrint);
      removeEventListener("scroll", fit);
      removeEventListener("resize", fit);
      sized.disconnect();
      player.stop();
    },
  };
}

const folding = (m) =>
  m.most >= 6000
    ? ""
    : m.most
      ? `It was a long session: each text is folded to ${m.most} characters.`
      : "It was a very long session: only the first line of each text is here.";

function made(m) {
  return h(
    "footer",
    { class: "quiet" },
    `Made by Turnout ${new Date(m.made * 1000).toLocaleString()}. Times are since the session began; a pointer on them shows the date. ${folding(m)}`,
  );
}

/** Ask the server that sent this page for more, when it says that there is more. */
function live(shown) {
  const events = new EventSource(`events?rows=${shown.state().rows}`);
  let waits = false;
  async function more() {
    const began = performance.now();
    const answer = await fetch("model");
    if (answer.ok) {
      const next = await inflate(await answer.text());
      const y = scrollY,
        kept = shown.state();
      shown.leave();
      shown = start(next, kept);
      scrollTo(0, y);
      if (!next.session.live) events.close();
    }
    return performance.now() - began;
  }
  /** Once for however many signs, not while somebody types, and never more than a quarter of the time. */
  async function soon() {
    if (waits) return;
    waits = true;
    while (/^(INPUT|SELECT)$/.test(document.activeElement?.tagName) || document.querySelector("dialog[open]"))
      await pause(300);
    waits = false;
    const took = await more();
    waits = true;
    await pause(3 * took);
    waits = false;
    if (missed) soon();
    missed = false;
  }
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  let missed = false;
  events.onmessage = () => {
    if (waits) missed = true;
    else soon();
  };
}

document.documentElement.dataset.theme = remember("theme") || "";
inflate(document.getElementById("data").textContent.trim())
  .then((model) => {
    const shown = start(model);
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
    if (model.session.live) live(shown);
  })
  .catch((error) => {
    document
      .getElementById("app")
      .replaceChildren(
        h("p", { class: "loading" }, `This page could not be drawn: ${error}. It wants a browser of 2023 or later.`),
      );
    document.documentElement.dataset.failed = String(error);
  });
