// Small tools: elements made with text and never with markup, times and amounts in words.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Set an attribute, or a text, only when it is another one: the browser then has nothing to lay out anew. */
function put(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** An HTML element: h("b", {class: "x"}, "text", node, ...). */
const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** 0:07, 12:30, 3:05:10, 2d 04:10; below ten seconds with a tenth. */
function clock(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  const sign = seconds < 0 ? "-" : "";
  const x = Math.abs(seconds);
  if (x < 10 && x !== Math.round(x)) return `${sign}${x.toFixed(1)} s`;
  const whole = Math.round(x);
  const two = (n) => String(n).padStart(2, "0");
  if (whole >= 86400)
    return `${sign}${Math.floor(whole / 86400)}d ${two(Math.floor((whole % 86400) / 3600))}:${two(Math.floor((whole % 3600) / 60))}`;
  const hours = Math.floor(whole / 3600),
    minutes = Math.floor((whole % 3600) / 60);
  if (hours) return `${sign}${hours}:${two(minutes)}:${two(whole % 60)}`;
  return `${sign}${minutes}:${two(whole % 60)}`;
}

/** A duration as a person says it: 0.4 s, 48 s, 5 min 39 s, 2 h 10 min, 3 d 4 h. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${seconds < 0.05 ? 0 : seconds.toFixed(1)} s`;
  const x = Math.round(seconds);
  if (x < 60) return `${x} s`;
  if (x < 3600) return `${Math.floor(x / 60)} min${x % 60 ? ` ${x % 60} s` : ""}`;
  if (x < 86400)
    return `${Math.floor(x / 3600)} h${Math.floor((x % 3600) / 60) ? ` ${Math.floor((x % 3600) / 60)} min` : ""}`;
  return `${Math.floor(x / 86400)} d${Math.floor((x % 86400) / 3600) ? ` ${Math.floor((x % 86400) / 3600)} h` : ""}`;
}

/** 0.66, 42, 3,165, 828M. */
function amount(n) {
  if (n === null || n === undefined) return "";
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
  ]) {
    if (Math.abs(n) >= size) return `${(n / size).toFixed(Math.abs(n) >= 10 * size ? 0 : 1)}${unit}`;
  }
  if (Number.isInteger(n) || Math.abs(n) >= 1000) return Math.round(n).toLocaleString("en");
  if (Math.abs(n) >= 100) return n.toFixed(0);
  if (Math.abs(n) >= 10) return n.toFixed(1);
  return Math.abs(n) < 0.001 && n !== 0 ? n.toExponential(1) : String(Number(n.toPrecision(3)));
}

const plural = (n, word, words) => `${n.toLocaleString("en")} ${n === 1 ? word : words || word + "s"}`;
const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
/** A todo's name; the question whether a call of the model may be made has an id that nobody knows. */
const named = (id) => (id.startsWith("call:") ? "permission" : id);
const mono = (text) => h("code", {}, text);

/** Round steps for an axis: the smallest that leaves at most `most` of them. */
function niceStep(span, most, steps) {
  return (
    steps.find((step) => span / step <= most) ||
    steps[steps.length - 1] * Math.ceil(span / steps[steps.length - 1] / most)
  );
}
const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
  604800,
];

/** The last index at which `test` holds, in a list in which it holds up to some point; -1 for none. */
function lastWhere(list, test) {
  let low = 0,
    high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(list[middle])) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function remember(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(`turnout.${key}`);
    localStorage.setItem(`turnout.${key}`, value);
  } catch {
    /* a page from disk may have no storage */
  }
  return null;
}
