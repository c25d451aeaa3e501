// The page of a peer's dashboard: listens to the live stream and updates each part of the page with the newest status.
// A part is rebuilt only if its data have changed. Strings from peers are text, never HTML.

import { colors, curves, el, graph, inOrder, mark, spark, svg } from "./draw.js";

// Milliseconds without an event after which the connection counts as lost: the peer sends one each second.
const SILENCE = 5000;
// Milliseconds before a rejected stream is requested again.
const AGAIN = 3000;

const at = (id) => document.getElementById(id);
const chosen = { group: null, round: null };
let status = null, heard = 0, shown = {};

// ------------------------------------------------------------------------------------------------------------- words

const DASH = "–";
const number = new Intl.NumberFormat("en");
const count = (value) => number.format(value);
const bytes = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit && value < 99.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
};
const score = (value, digits = 1) => {
  if (value === null || value === undefined) return DASH;
  return status.score_name === "accuracy" ? `${(100 * value).toFixed(digits)}\u00a0%` : String(Number(value.toPrecision(3)));
};
const small = (value) => {
  if (value === null) return DASH;
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
};
const lasting = (seconds) => {
  if (seconds === null) return DASH;
  if (seconds < 1) return `${(1000 * seconds).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
};
const ago = (seconds) => (seconds === null ? "never" : seconds < 1.5 ? "now" : `${lasting(Math.round(seconds))} ago`);
const clock = (t) => new Date(1000 * t).toLocaleTimeString("en-GB");
const spoken = (name) => name.replaceAll("_", " ").replaceAll("-", " ");
const capital = (name) => name[0].toUpperCase() + name.slice(1);
const KINDS = { h: "harmless", s: "suspicious", x: "closes the edge", o: "this machine" };

// ------------------------------------------------------------------------------------------------------------- parts

/** Fill a part of the page if its data differ from what it shows. */
function part(id, source, make) {
  const text = JSON.stringify(source);
  if (shown[id] === text) return;
  shown[id] = text;
  const old = at(id), [above, focused] = [old.scrollTop, old.contains(document.activeElement) && old !== document.activeElement];
  old.replaceChildren(...[make()].flat().filter((child) => child !== null));
  old.scrollTop = above;
  if (focused) old.querySelector("[tabindex], [aria-pressed=true]")?.focus();
}

function header(s) {
  document.title = `${s.peer} · ${s.state} · ${s.federation}`;
  part("title", [s.peer, s.federation], () => `${s.peer} in ${s.federation}`);
  at("progress").max = Math.max(1, s.rounds);
  at("progress").value = s.round;
  part("where", [s.state, s.round, s.rounds], () => `${s.state}, round ${count(s.round)} of ${count(s.rounds)}`);
  const facts = [s.mode, s.device, s.transport, `up ${lasting(s.uptime_s)}`, `incarnation ${s.incarnation}`, `roster ${s.roster}`, `fedpeer ${s.version}`];
  part("facts", facts, () => facts.map((fact) => el("span", {}, fact)));
}

/** The alarms, shown before anything else on the page; empty if there are none. */
function alarms(s) {
  const astray = s.groups.filter((group) => !(0.2 <= group.weight / group.start_weight && group.weight / group.start_weight <= 2));
  return [
    s.alone_s > 0 ? `Training alone for ${lasting(s.alone_s)}: no other peer answers. The round does not advance until one does.` : null,
    s.stalled_s > 0 ? `Round ${count(s.round)} has been averaging for ${lasting(s.stalled_s)}, which is unusually long.` : null,
    ...astray.map((group) => `This peer holds ${small(group.weight / group.start_weight)} times the usual push-sum weight in ${group.id}.`),
  ].filter((text) => text !== null);
}

function alarm(s) {
  const texts = alarms(s);
  at("alarm").hidden = texts.length === 0;
  part("alarm", texts, () => texts.join(" "));
}

const newest = (points) => (points?.length ? points[points.length - 1][1] : null);

function tiles(s) {
  const there = s.peers.filter((peer) => ["me", "alive", "suspect", "finished"].includes(peer.state)).map((peer) => peer.id);
  const last = there.map((id) => newest(s.scores[id])).filter((value) => value !== null);
  const unheard = s.peers.length - there.length;
  const mean = last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
  const well = s.peers.filter((peer) => ["me", "alive", "finished"].includes(peer.state)).length;
  const refused = s.refusals.filter((row) => row.kind !== "h").reduce((sum, row) => sum + row.count, 0);
  const harmless = s.refusals.reduce((sum, row) => sum + row.count, 0) - refused;
  const weights = s.groups.map((group) => group.weight);
  const apart = s.groups.map((group) => group.disagreement).filter((value) => value !== null);
  const council = s.councils.find((each) => each.paused) ?? s.councils[0];
  const voting = council?.voters_there.length, majority = council && Math.floor(council.voters.length / 2) + 1;
  const rows = [
    [`${capital(s.score_name)} here`, score(newest(s.scores[s.peer])), s.loss === null ? "not measured yet" : `loss ${small(s.loss)}`],
    [unheard ? `Mean of ${there.length} of ${s.peers.length} peers` : "All peers, mean", score(mean), last.length ? `${score(Math.min(...last))} to ${score(Math.max(...last))}` : "not measured yet"],
    ["Peers", `${well} of ${s.peers.length}`, well < s.peers.length ? `${s.peers.length - well} missing` : "all reachable", well < s.peers.length],
    ...(council ? [
      ...(s.server_scores.length ? [["Server's model", score(newest(s.server_scores)), "on this peer's test part"]] : []),
      ["Coordinator", council.coordinator ?? "none", (s.councils.length > 1 ? `of ${council.id}, ` : "")
        + (council.paused ? "rounds pause" : `term ${count(council.term)}`), council.paused],
      ["Voters", `${voting} of ${council.voters.length}`, `${majority} are a majority`, voting < majority],
    ] : []),
    ...(s.groups.length || !council ? [
      ["Push-sum weight", weights.length ? small(Math.min(...weights)) : DASH, weights.length > 1 ? "lowest of all" : "of the group"],
      ["Disagreement", apart.length ? small(Math.max(...apart)) : DASH, !apart.length && s.alone_s > 0 ? "no peer to compare with" : apart.length > 1 ? "highest of all" : "to neighbors"],
    ] : []),
    ["Sent", bytes(s.traffic.bytes_sent), `${count(s.traffic.messages_sent)} messages`],
    ["Received", bytes(s.traffic.bytes_received), `${count(s.traffic.messages_received)} messages`],
    ...(s.carried.bytes ? [["Carried", bytes(s.carried.bytes), `${s.carried.connections} of other peers' connections`]] : []),
    ["Rejected", count(refused), `and ${count(harmless)} harmless`, refused > 0],
  ];
  part("tiles", rows, () => rows.map(([label, value, note, alarm]) => el("div", { class: alarm ? "tile alarm" : "tile" },
    el("span", { class: "label" }, label), el("span", { class: "value" }, value), el("span", { class: "note" }, note))));
}

/** A group with coordinated rounds, as drawn: an edge from the coordinator to every other member. */
const star = (council) => ({ ...council, models: [council.id], edges: council.members
  .filter((id) => council.coordinator !== null && id !== council.coordinator).map((id) => [council.coordinator, id]) });

/** All groups that can be drawn. */
const drawable = (s) => [...s.groups, ...s.councils.map(star)];

/** The group that is drawn: the chosen one, or the first; before there are groups, all peers. */
function drawnGroup(s) {
  return drawable(s).find((group) => group.id === chosen.group) ?? drawable(s)[0]
    ?? { id: "all peers", members: s.peers.map((peer) => peer.id), edges: [], waiting_for: [] };
}

function overlay(s) {
  const group = drawnGroup(s), states = new Map(s.peers.map((peer) => [peer.id, peer.state]));
  const choices = s.groups.length || s.councils.length > 1 ? drawable(s) : [];
  part("choose", [choices.map((each) => each.id), group.id], () => choices.map((each) => {
    const button = el("button", { type: "button", "aria-pressed": String(each.id === group.id), title: each.models.join(", ") }, each.id);
    button.addEventListener("click", () => { chosen.group = each.id; show(); });
    return button;
  }));
  part("h-graph", "coordinator" in group, () => ("coordinator" in group ? "Who coordinates whom" : "Who averages with whom"));
  const width = at("graph").clientWidth;
  part("graph", [group.members, group.edges, [...states], group.waiting_for, width],
    () => graph(group.members, group.edges, states, group.waiting_for, width));
  const counts = group.members.includes(s.peer) ? { me: 0 } : {};
  for (const id of group.members) counts[states.get(id) ?? "unknown"] = (counts[states.get(id) ?? "unknown"] ?? 0) + 1;
  part("legend", [counts, group.waiting_for.length], () => [
    ...Object.keys(counts).map((state) => el("li", {}, svg("svg", { width: 16, height: 16, "aria-hidden": "true" }, mark(state, 8, 8, 5.5)),
      state === "me" ? "this peer" : `${state} ${counts[state]}`)),
    group.waiting_for.length ? el("li", {}, svg("svg", { width: 16, height: 16, "aria-hidden": "true" }, svg("circle", { class: "ring", cx: 8, cy: 8, r: 6 })),
      `waited for ${group.waiting_for.length}`) : null,
  ]);
}

/** The newest value of a curve that is not later than a round. */
const valueAt = (points, round) => points.reduce((found, point) => (point[0] <= round && point[1] !== null ? point[1] : found), null);

function accuracy(s) {
  part("h-curves", s.score_name, () => capital(s.score_name));
  const box = at("curves"), width = Math.max(260, box.clientWidth);
  box.classList.toggle("many", Object.keys(s.scores).length > 16);
  const measured = Object.keys(s.scores).filter((id) => s.scores[id].length), colored = colors(measured, s.peer);
  part("curve-keys", [measured, s.peer], () => [
    measured.includes(s.peer) ? el("li", { class: "own" }, "this peer") : null,
    ...[...colored].map(([id, looks]) => el("li", { class: looks }, id)),
    measured.some((id) => id !== s.peer && !colored.has(id)) ? el("li", { class: "others" }, "other peers") : null,
  ]);
  part("curves", [s.scores, s.peer, s.score_name, width, chosen.round], () => curves(s.scores, s.peer, colored, (value) => score(value, 0), width, chosen.round, (round) => {
    if (round === chosen.round) return;
    chosen.round = round;
    accuracy(status);
  }));
  const rounds = Object.values(s.scores).flatMap((points) => points.map((point) => point[0]));
  const round = chosen.round ?? (rounds.length ? Math.max(...rounds) : null);
  const values = Object.entries(s.scores).map(([id, points]) => [id, valueAt(points, round)]).filter(([, value]) => value !== null);
  values.sort(([one, a], [other, b]) => (s.score_name === "accuracy" ? b - a : a - b) || inOrder(one, other));
  const named = ([id, value], role) => [role ? `${role} ` : "", el(id === s.peer ? "span" : "b", { class: id === s.peer ? "me" : null }, `${id} ${score(value)}`)];
  const own = values.find(([id]) => id === s.peer);
  part("readout", [round, values, chosen.round === null], () => {
    if (!values.length) return "";
    const told = values.length <= 6 ? values.map((each) => named(each, ""))
      : [...(own ? [named(own, "")] : []), named(values[0], "best"), named(values[Math.floor(values.length / 2)], "middle"), named(values[values.length - 1], "worst")];
    return [`Round ${round}: `, ...told.flatMap((each, n) => (n ? [" · ", ...each] : each))];
  });
}

// ------------------------------------------------------------------------------------------------------------ tables

/** A table: headings, and rows whose first cell names the row. A cell is text or [text, more elements]. */
function table(caption, kind, headings, rows) {
  const right = (heading) => (heading.startsWith(">") ? "number" : heading.startsWith("~") ? "wide" : null);
  const bare = (heading) => heading.replace(/^[>~]/, "");
  const head = el("tr", {}, ...headings.map((heading) => el("th", { scope: "col", class: right(heading) }, bare(heading))));
  const body = rows.map(({ looks = null, cells }) => el("tr", { class: looks }, ...cells.map((cell, n) => (n
    ? el("td", { class: right(headings[n]), "data-label": bare(headings[n]) }, el("span", {}, ...[cell].flat().filter((each) => each !== null)))
    : el("th", { scope: "row" }, ...[cell].flat())))));
  return el("table", { class: kind }, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body));
}

const councilTable = (s) => table("Coordinated rounds of this peer", "folds",
  ["group", ">members", "coordinator", ">term", ">last round", ">updates counted", ">voters", ">sent", ">received", "waiting for", ">members skipped"],
  s.councils.map((c) => ({
    cells: [c.id, count(c.members.length), c.coordinator ?? (c.paused ? "none: rounds pause" : "none yet"), count(c.term), count(c.round), count(c.counted.length),
      `${c.voters_there.length} of ${c.voters.length}${c.votes ? "" : ", and this peer does not vote"}`, bytes(c.bytes_sent), bytes(c.bytes_received),
      c.waiting_for.length ? someOf(c.waiting_for) : DASH, count(c.late)],
  })));

const groupTable = (s) => table("Averaging groups of this peer", "folds",
  ["group", ">members", ">parameters", ">round, exchange", ">weight", ">disagreement", ">sent", ">received", "waiting for", ">members skipped"],
  s.groups.map((g) => ({
    cells: [[g.id, g.models.join() === g.id ? null : el("span", { class: "models" }, ` ${g.models.join(", ")}`)].filter(Boolean), count(g.members.length), count(g.length),
      `${count(g.round)}, ${g.exchange}`, [small(g.weight), spark(g.trail.map(([round, weight]) => [round, weight]))],
      [small(g.disagreement), spark(g.trail.map(([round, , apart]) => [round, apart]), true)], bytes(g.bytes_sent), bytes(g.bytes_received),
      g.waiting_for.length ? someOf(g.waiting_for) : DASH, count(g.late)],
  })));

function groups(s) {
  const tables = [...(s.groups.length ? [groupTable] : []), ...(s.councils.length ? [councilTable] : [])];
  const heading = tables[0] === councilTable ? "Coordinated rounds" : "Averaging groups";
  part("h-groups", heading, () => heading);
  part("groups", [s.groups, s.councils], () => (tables.length ? tables.map((each) => each(s))
    : el("p", { class: "empty" }, "No averaging group yet: the peers are gathering.")));
}

const someOf = (names) => (names.length <= 4 ? names.join(", ") : `${names.slice(0, 3).join(", ")} and ${names.length - 3} more`);

function peers(s) {
  const rows = [...s.peers].sort((a, b) => inOrder(a.id, b.id)).map((peer) => ({
    looks: peer.state === "me" ? "me" : null,
    cells: [peer.id, el("span", { class: `state ${peer.state}` }, peer.state === "me" ? "this peer" : peer.state), count(peer.round),
      score(peer.score ?? (peer.state === "me" ? newest(s.scores[s.peer]) : null)), peer.state === "me" ? DASH : ago(peer.heard_s), peer.address],
  }));
  part("peers", s.peers, () => table("Peers of the federation", "peers", ["peer", "state", ">round", `>${s.score_name}`, ">last message", "~address"], rows));
}

function refusals(s) {
  const rows = [...s.refusals].sort((a, b) => b.last - a.last);
  part("refusals", rows, () => (rows.length ? table("Rejections", "folds", ["what", "kind", "from", ">times", ">last"],
    rows.map((row) => ({ cells: [spoken(row.code), KINDS[row.kind] ?? row.kind, row.sender || (row.kind === "o" ? "this machine" : "a stranger"), count(row.count), clock(row.last)] })))
    : el("p", { class: "empty" }, "Nothing was rejected.")));
}

function counters(s) {
  const pairs = Object.entries(s.counters).map(([name, value]) => [spoken(name), Number.isInteger(value) ? count(value) : small(value)]);
  for (const [name, timing] of Object.entries(s.timings)) {
    pairs.push([`${name}, mean of ${count(timing.count)}`, timing.count ? lasting(timing.sum / timing.count) : DASH]);
  }
  pairs.push(["event loop lag, 99 %", lasting(s.lag_ms_p99 / 1000)]);
  part("counters", pairs, () => pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function log(s) {
  part("log", s.log, () => (s.log.length ? [...s.log].reverse().map((line) => el("li", {},
    el("time", { datetime: new Date(1000 * line.t).toISOString() }, clock(line.t)), el("span", { class: line.level }, line.level),
    el("span", { class: "text" }, line.text, line.more ? el("span", { class: "more" }, ` (and ${count(line.more)} more like it)`) : null)))
    : el("li", {}, el("span", { class: "empty" }, "Nothing yet."))));
}

function show() {
  if (status === null) return;
  for (const draw of [header, alarm, tiles, overlay, accuracy, groups, peers, refusals, counters, log]) draw(status);
}

// ------------------------------------------------------------------------------------------------------------ stream

function connection(state, words) {
  document.body.classList.toggle("lost", state === "lost");
  const place = at("connection");
  if (place.textContent === words) return;
  place.dataset.state = state;
  place.textContent = words;
}

const lost = () => connection("lost", heard ? `connection lost, as of ${clock(heard / 1000)}; trying again` : "no connection; trying again");

function listen() {
  const stream = new EventSource("/events");
  stream.onmessage = (event) => {
    status = JSON.parse(event.data);
    heard = Date.now();
    connection("live", "live");
    show();
  };
  stream.onerror = async () => {
    lost();
    if (stream.readyState !== EventSource.CLOSED) return; // otherwise the browser tries again by itself
    const answer = await fetch("/status.json").catch(() => null);
    if (answer?.status === 401) location.reload(); // the token has changed: reload shows the page that asks for it
    else setTimeout(listen, AGAIN);
  };
}

setInterval(() => { if (Date.now() - heard > SILENCE && at("connection").dataset.state === "live") lost(); }, 1000);
new ResizeObserver(show).observe(document.body);
listen();
