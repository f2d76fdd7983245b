// The bar at the foot: where one is, one message back and on, and playing in the original timing with short pauses.

const SPEEDS = [1, 2, 5, 10, 30, 100, 500];
const LONGEST_PAUSE_S = 1.5;

function makePlayer(m, act) {
  let timer = null,
    speed = Number(remember("speed")) || 10;
  const range = h("input", {
    type: "range",
    min: 0,
    max: m.rows.length,
    value: act.place(),
    "aria-label": "message",
    oninput: (e) => act.seek(Number(e.target.value)),
  });
  const where = h("button", { class: "where", title: "Go to (g)", onclick: act.goTo });
  const play = h("button", { class: "tool", title: "Play (Space)", "aria-label": "Play", onclick: toggle }, "▶");
  const pace = h(
    "select",
    { "aria-label": "speed", title: "Speed (< >)", onchange: (e) => setSpeed(Number(e.target.value)) },
    SPEEDS.map((x) => h("option", { value: x, selected: x === speed }, `${x}×`)),
  );
  const move = (text, by, title) =>
    h("button", { class: "tool", title, "aria-label": title, onclick: () => act.seek(act.place() + by) }, text);
  const node = h(
    "div",
    { class: "player noprint" },
    move("‹", -1, "One message back (←)"),
    play,
    move("›", 1, "One message on (→)"),
    range,
    where,
    pace,
  );

  function setSpeed(next) {
    speed = next;
    pace.value = String(next);
    remember("speed", next);
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play");
  }

  function toggle() {
    if (timer !== null) return stop();
    if (act.place() >= m.rows.length) act.seek(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
    step();
  }

  /** Wait as long as it took, at this speed, and go on; what came together is shown together. */
  function step() {
    const place = act.place();
    if (place >= m.rows.length) return stop();
    let next = place + 1;
    while (next < m.rows.length && m.rows[next][2] - m.rows[place][2] < 0.04 * speed) next++;
    const pause = Math.min((timeAt(m, next) - timeAt(m, place)) / speed, LONGEST_PAUSE_S);
    timer = setTimeout(
      () => {
        act.seek(next);
        step();
      },
      Math.max(30, pause * 1000),
    );
  }

  function at(place) {
    const all = place === m.rows.length;
    range.value = String(place);
    const of = h("span", { class: "of" }, ` / ${m.rows.length}`);
    where.replaceChildren(String(place), of, ` · ${clock(all ? m.end : timeAt(m, place))}`);
  }

  const faster = (by) => setSpeed(SPEEDS[clamp(SPEEDS.indexOf(speed) + by, 0, SPEEDS.length - 1)]);
  return { node, at, toggle, stop, faster };
}
