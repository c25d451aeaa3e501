// Drawing: elements, the graph of a group, curves, small lines in tables. Every string from outside becomes a text node
// or an attribute that holds text; nothing here ever makes HTML from a string.

const SVG = "http://www.w3.org/2000/svg";
// Most peers whose whole names are written around a circle; more are distinguished by the end of their names.
const NAMED_MAX = 16;
// Number of peers around a circle above which their names are written smaller.
const TIGHT = 40;
// Most curves with names at their ends, and the height of a name.
const CURVES_NAMED = 8, NAME_HEIGHT = 13;
// Colors for the curves of other peers: the report's, from the second on, since the first one is this peer's.
const COLORS = ["m2", "m3", "m4", "m5", "m6", "m7"];
// Characters of one name beside the circle; the whole name is in its title.
const NAME_LETTERS = 14;

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

export const el = (tag, attributes = {}, ...children) => made(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

/** Names in the order in which a person counts: peer2 before peer10. */
export const inOrder = new Intl.Collator("en", { numeric: true }).compare;

// ------------------------------------------------------------------------------------------------------------- graph

/** A mark for a peer's state: filled, dashed, crossed out or hollow, so that it can be told without color. */
export function mark(state, x, y, radius) {
  const circle = svg("circle", { class: `node ${state}`, cx: x, cy: y, r: radius });
  if (state !== "dead") return circle;
  const arm = radius * 0.6;
  const cross = svg("path", { class: "cross dead", d: `M${x - arm} ${y - arm}l${2 * arm} ${2 * arm}m0 ${-2 * arm}l${-2 * arm} ${2 * arm}` });
  return svg("g", {}, circle, cross);
}

/** The members of a group on a circle, this peer on top, and the edges of its overlay. */
export function graph(members, edges, states, waiting, width) {
  const size = Math.max(220, Math.min(width, 460));
  const ids = [...members].sort(inOrder);
  const names = shortened(ids);
  const outside = 8 + 7 * Math.max(0, ...names.map((name) => name.length));
  const radius = size / 2 - Math.min(outside, size / 4) - 6;
  const dot = Math.max(3, Math.min(10, (1.9 * radius) / ids.length));
  const top = Math.max(0, ids.findIndex((id) => states.get(id) === "me"));
  const place = new Map(ids.map((id, n) => {
    const angle = (2 * Math.PI * (n - top)) / ids.length - Math.PI / 2;
    return [id, { angle, x: size / 2 + radius * Math.cos(angle), y: size / 2 + radius * Math.sin(angle) }];
  }));
  const lines = edges.filter(([a, b]) => place.has(a) && place.has(b)).map(([a, b]) => {
    const ends = [states.get(a), states.get(b)];
    const looks = `${ends.includes("me") ? " mine" : ""}${ends.includes("dead") || ends.includes("left") ? " cut" : ""}`;
    const [from, to] = [place.get(a), place.get(b)];
    return svg("line", { class: `edge${looks}`, x1: from.x, y1: from.y, x2: to.x, y2: to.y });
  });
  lines.sort((one, other) => one.classList.contains("mine") - other.classList.contains("mine"));
  const nodes = ids.map((id, n) => {
    const { angle, x, y } = place.get(id);
    const state = states.get(id) ?? "unknown";
    const side = Math.cos(angle), away = dot + 8;
    const anchor = Math.abs(side) < 0.25 ? "middle" : side > 0 ? "start" : "end";
    const label = svg("text", {
      class: ids.length > TIGHT ? `tight ${state}` : state, x: x + away * side, y: y + away * Math.sin(angle) + 4 + 4 * Math.sin(angle), "text-anchor": anchor,
    }, names[n]);
    const late = waiting.includes(id);
    return svg("g", { "data-peer": id }, svg("title", {}, `${id}: ${state}${late ? ", waited for" : ""}`),
      mark(state, x, y, dot), late ? svg("circle", { class: "ring", cx: x, cy: y, r: dot + 4 }) : null, label);
  });
  const told = `${ids.length} peers and ${lines.length} edges; the table of peers has the same as text`;
  return svg("svg", { width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": told }, ...lines, ...nodes);
}

/** The names, without their common beginning if there are many, cut to the length that fits. */
function shortened(ids) {
  let common = 0;
  if (ids.length > NAMED_MAX) {
    const [first, last] = [ids.reduce((a, b) => (a < b ? a : b)), ids.reduce((a, b) => (a > b ? a : b))];
    while (common < first.length - 1 && first[common] === last[common] && !/\d/.test(first[common])) common += 1;
  }
  const most = ids.length > NAMED_MAX ? 5 : NAME_LETTERS;
  return ids.map((id) => (id.length - common > most ? `${id.slice(common, common + most - 1)}…` : id.slice(common)));
}

// ------------------------------------------------------------------------------------------------------------ curves

/** Round numbers that divide [low, high] into at most `most` parts. */
function ticks(low, high, most, whole = false) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(tick);
  return found;
}

const path = (points, x, y) => points.map(([round, value], n) => `${n ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`).join("");

/** Classes by peer that give each curve of the others its color; empty if there are more of them than colors. */
export function colors(ids, me) {
  const others = ids.filter((id) => id !== me).sort(inOrder);
  return new Map(others.length > COLORS.length ? [] : others.map((id, n) => [id, `colored ${COLORS[n]}`]));
}

/** What a curve and its name look like. */
const looks = (kind, id, me, colored) => `${kind} ${id === me ? "own" : colored.get(id) ?? ""}`.trim();

/** The names of curves at their last points, moved down so that none covers another. */
function endNames(all, me, colored, x, y, lowest) {
  const ends = all.map(([id, points]) => [id, points.filter((point) => point[1] !== null).at(-1)]).filter(([, end]) => end);
  ends.sort(([, one], [, other]) => y(one[1]) - y(other[1]));
  const from = Math.max(...ends.map(([, end]) => x(end[0])));
  let above = -Infinity;
  const heights = ends.map(([, end]) => (above = Math.max(above + NAME_HEIGHT, y(end[1]) + 4)));
  const over = Math.max(0, above - lowest);
  const names = shortened(ends.map(([id]) => id));
  return ends.map(([id], n) => svg("text", { class: looks("curve-name", id, me, colored), x: from + 7, y: heights[n] - over }, names[n]));
}

/** Curves over rounds, this peer's on top. `colored` has the others' colors, `words` formats a value; `pick(round)` is
 *  called with the round that the pointer or the arrow keys select (null: none), `at` is the selected round. */
export function curves(scores, me, colored, words, width, at, pick) {
  const all = Object.entries(scores).filter(([, points]) => points.length);
  const values = all.flatMap(([, points]) => points.map((point) => point[1])).filter((value) => value !== null);
  if (!values.length) return el("p", { class: "empty" }, "No peer has been measured yet.");
  const named = all.length <= CURVES_NAMED && width > 360;
  const height = Math.max(240, Math.min(400, 0.64 * width)), left = 46, right = named ? 92 : 14, top = 8, bottom = 26;
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const air = Math.max((high - low) * 0.06, Math.abs(high) * 0.01, 1e-6);
  [low, high] = [low - air, high + air];
  const rounds = all.flatMap(([, points]) => [points[0][0], points[points.length - 1][0]]);
  const first = Math.min(...rounds), last = Math.max(...rounds, first + 1);
  const x = (round) => left + ((width - left - right) * (round - first)) / (last - first);
  const y = (value) => top + ((height - top - bottom) * (high - value)) / (high - low);
  const rows = ticks(low, high, 5).map((tick) => svg("g", {}, svg("line", { class: "gridline", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
    svg("text", { class: "axis", x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, words(tick))));
  const columns = ticks(first, last, Math.max(2, width / 90), true).map((tick) =>
    svg("text", { class: "axis", x: x(tick), y: height - 6, "text-anchor": "middle" }, String(tick)));
  columns.push(svg("text", { class: "axis", x: left - 7, y: height - 6, "text-anchor": "end" }, "round"));
  const drawn = all.map(([id, points]) => {
    const known = points.filter((point) => point[1] !== null);
    const line = svg("path", { class: looks("curve", id, me, colored), "data-peer": id, d: path(known, x, y) });
    line.append(svg("title", {}, id));
    return line;
  });
  drawn.sort((one, other) => one.classList.contains("own") - other.classList.contains("own"));
  if (named) drawn.push(...endNames(all, me, colored, x, y, height - bottom));
  const own = (scores[me] ?? []).filter((point) => point[1] !== null);
  const newest = own[own.length - 1];
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0",
    "aria-label": `Curves of ${all.length} peers over rounds ${first} to ${last}; arrow keys read out values` },
  ...rows, ...columns, ...drawn, newest ? svg("circle", { class: "dot", cx: x(newest[0]), cy: y(newest[1]), r: 4 }) : null,
  at === null ? null : svg("line", { class: "cursor", x1: x(at), x2: x(at), y1: top, y2: height - bottom }));
  const steps = [...new Set(all.flatMap(([, points]) => points.map((point) => point[0])))].sort((a, b) => a - b);
  const nearest = (round) => steps.reduce((best, step) => (Math.abs(step - round) < Math.abs(best - round) ? step : best));
  picture.addEventListener("pointermove", (event) => {
    const here = event.clientX - picture.getBoundingClientRect().left;
    pick(nearest(first + ((here - left) * (last - first)) / (width - left - right)));
  });
  picture.addEventListener("pointerleave", () => pick(null));
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") pick(null);
    if (!move) return;
    event.preventDefault();
    const now = at === null ? (move > 0 ? -1 : steps.length) : steps.indexOf(nearest(at));
    pick(steps[Math.max(0, Math.min(steps.length - 1, now + move))]);
  });
  return picture;
}

/** A line of some values without axes, for a table. */
export function spark(points, log = false) {
  const known = points.filter((point) => point[1] !== null && (!log || point[1] > 0)).map(([at, value]) => [at, log ? Math.log10(value) : value]);
  if (known.length < 2) return null;
  const width = 84, height = 20, values = known.map((point) => point[1]);
  const [low, high] = [Math.min(...values), Math.max(...values)], span = high - low || 1;
  const first = known[0][0], whole = known[known.length - 1][0] - first || 1;
  const d = path(known, (at) => 1 + ((width - 2) * (at - first)) / whole, (value) => height - 2 - ((height - 4) * (value - low)) / span);
  return svg("svg", { class: "spark", width, height, "aria-hidden": "true" }, svg("path", { d }));
}
