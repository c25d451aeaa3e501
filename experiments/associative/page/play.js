// The page of the demonstration: a peer, the given cells, and its network's answer layer by layer. The page computes
// nothing about networks: each change of the given cells is a question to Python.

import { el, svg } from "/draw.js";

// Milliseconds from the hidden units to the answer.
const PAUSE = 450;
// Hidden units per row, and the size of each.
const UNITS_WIDE = 25, UNIT = 10;
// Shows all methods side by side.
const ALL = "all";
const GIVEN = 0, HIDDEN = 1, ANSWER = 2;
const NEXT = ["show the hidden units", "show the answer", "layer by layer"];
const RELATIONS = { learnt: "learnt", otherwise: "learnt another", never: "never shown" };

const at = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
let demo, peer, given, view = ALL, stage = ANSWER, answers = null, asking = false, again = false, timer = 0;
const panels = new Map();

// ---------------------------------------------------------------------------------------------------------- questions

/** Ask about the given cells. While a question is under way, only the newest one waits. */
async function ask() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    do {
      again = false;
      const body = JSON.stringify({ peer, methods: demo.methods.map((method) => method.id), given });
      const reply = await fetch("/ask", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      const found = await reply.json();
      if (!reply.ok) throw new Error(found.says);
      if (!again) answers = found;
    } while (again);
    at("trouble").hidden = true;
    play();
  } catch (error) {
    trouble(error);
  } finally {
    asking = false;
  }
}

function trouble(error) {
  at("trouble").hidden = false;
  at("trouble").textContent = error instanceof TypeError
    ? "The program behind this page has ended. Start it again with fedpeer demo associative --web." : error.message;
}

// ------------------------------------------------------------------------------------------------------------- layers

/** Show the hidden units, then the answer; at once if the user prefers reduced motion. */
function play() {
  clearTimeout(timer);
  if (still.matches) return to(ANSWER);
  to(HIDDEN);
  timer = setTimeout(() => to(ANSWER), PAUSE);
}

function to(reached) {
  stage = reached;
  [...at("stages").children].forEach((each, n) => {
    each.classList.toggle("reached", n <= stage);
    if (n === stage) each.setAttribute("aria-current", "step"); else each.removeAttribute("aria-current");
  });
  at("step").textContent = NEXT[stage];
  for (const [method, panel] of panels) show(panel, answers[method]);
  at("said").textContent = stage === ANSWER
    ? demo.methods.filter(({ id }) => view === ALL || view === id).map(({ id, name }) => `${name}: ${answers[id].says}`).join(" ") : "";
}

function show(panel, found) {
  drawUnits(panel, found);
  const fires = (kind) => found.hidden.filter((on, n) => on && found.averaged[n] === kind).length;
  const [shared, own] = [fires(1), fires(0)], averaged = found.averaged.filter((each) => each).length;
  const which = !averaged ? ", all its own" : averaged === found.hidden.length ? ", all averaged"
    : `: ${shared} of ${averaged} averaged, ${own} of ${found.hidden.length - averaged} its own`;
  panel.count.textContent = stage < HIDDEN ? "No hidden unit has fired yet." : `${shared + own} of ${found.hidden.length} hidden units fire${which}.`;
  const waits = stage < ANSWER;
  panel.answer.classList.toggle("waiting", waits);
  panel.cells.forEach((cell, n) => { cell.className = `${cell.dataset.place} ${waits ? "" : looks(found, n)}`; });
  const [outcome, ...wrong] = found.verdict ?? [];
  panel.answer.setAttribute("aria-label", waits ? "no answer yet" : ["answer", outcome ?? `${found.answer.filter((on) => on).length} cells`, ...wrong].join(", "));
  panel.verdict.className = `verdict ${waits || found.passes === null ? "" : found.passes ? "passes" : "fails"}`;
  panel.verdict.replaceChildren(...(waits || !outcome ? [] : [outcome, el("span", {}, wrong.length ? `, ${wrong.join(", ")}` : "")]));
  panel.says.textContent = waits ? "" : found.says;
}

const looks = ({ answer, expected }, n) => (expected === null ? (answer[n] ? "on" : "")
  : answer[n] ? (expected[n] ? "right" : "extra") : expected[n] ? "missing" : "");

/** Draw the hidden units: averaged ones round and above, own ones square and below. */
function drawUnits(panel, found) {
  const key = found.averaged.join("");
  if (panel.key !== key) {
    panel.key = key;
    const places = new Map();
    let top = 0;
    for (const kind of [1, 0]) {
      const units = found.averaged.flatMap((each, n) => (each === kind ? [n] : []));
      units.forEach((unit, n) => places.set(unit, [n % UNITS_WIDE, Math.floor(n / UNITS_WIDE) + top]));
      if (units.length) top += Math.ceil(units.length / UNITS_WIDE) + 0.8;
    }
    panel.units.setAttribute("viewBox", `0 0 ${UNITS_WIDE * UNIT} ${(top - 0.8) * UNIT}`);
    panel.marks = found.averaged.map((kind, n) => {
      const [x, y] = places.get(n).map((place) => place * UNIT);
      return kind ? svg("circle", { cx: x + UNIT / 2, cy: y + UNIT / 2, r: 3.6 }) : svg("rect", { x: x + 1.6, y: y + 1.6, width: 6.8, height: 6.8 });
    });
    panel.units.replaceChildren(...panel.marks);
  }
  found.averaged.forEach((kind, n) => {
    panel.marks[n].setAttribute("class", `unit ${kind ? "averaged" : "own"}${found.hidden[n] && stage >= HIDDEN ? " fires" : ""}`);
  });
}

// -------------------------------------------------------------------------------------------------------------- cells

/** Return a cell's class: in images every second block of 2x2 is darker, as on a chessboard. */
function place(n) {
  const [row, column] = [Math.floor(n / demo.columns), n % demo.columns];
  return demo.images && (Math.floor(row / 2) + Math.floor(column / 2)) % 2 ? "cell dark-block" : "cell";
}

/** Lay out cells as rows of a grid. */
function laidOut(box, cells) {
  box.classList.toggle("pixels", demo.images);
  box.style.gridTemplateColumns = `repeat(${demo.columns}, minmax(0, 1fr))`;
  const row = (number) => cells.slice(number * demo.columns, (number + 1) * demo.columns);
  box.replaceChildren(...Array.from({ length: demo.rows }, (_, number) => el("div", box.id === "given" ? { role: "row" } : {}, ...row(number))));
}

function giveCells(cells) {
  given = cells;
  showGiven();
  ask();
}

function showGiven() {
  for (const cell of at("given").querySelectorAll(".cell")) cell.setAttribute("aria-selected", String(given[cell.dataset.n] === 1));
  const all = demo.peers.find((each) => each.id === peer).patterns;
  [...at("presets").children].forEach((button, n) => button.setAttribute("aria-pressed", String(all[n].half.join() === given.join())));
}

function set(n, on) {
  if (given[n] === on) return;
  giveCells(given.map((each, place) => (place === n ? on : each)));
}

function grid() {
  const box = at("given");
  const cells = given.map((_, n) => el("div", {
    class: place(n), role: "gridcell", "data-n": n, tabindex: n ? -1 : 0,
    "aria-label": `row ${Math.floor(n / demo.columns) + 1}, column ${(n % demo.columns) + 1}`,
  }));
  laidOut(box, cells);
  let paint = null;
  const under = (event) => document.elementFromPoint(event.clientX, event.clientY)?.closest("#given .cell");
  box.addEventListener("pointerdown", (event) => {
    const cell = under(event);
    if (!cell || event.button) return;
    event.preventDefault();
    paint = given[cell.dataset.n] ? 0 : 1;
    go(cell);
    set(Number(cell.dataset.n), paint);
  });
  addEventListener("pointermove", (event) => {
    const cell = paint === null ? null : under(event);
    if (cell) set(Number(cell.dataset.n), paint);
  });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { paint = null; });
  const go = (cell) => {
    for (const each of cells) each.tabIndex = each === cell ? 0 : -1;
    cell.focus();
  };
  box.addEventListener("keydown", (event) => {
    const n = Number(event.target.dataset.n), column = n % demo.columns;
    const next = {
      ArrowLeft: column ? n - 1 : n, ArrowRight: column < demo.columns - 1 ? n + 1 : n, ArrowUp: n - demo.columns,
      ArrowDown: n + demo.columns, Home: n - column, End: n - column + demo.columns - 1,
    }[event.key];
    if (event.key === " " || event.key === "Enter") set(n, 1 - given[n]);
    else if (next === undefined) return;
    else if (cells[next]) go(cells[next]);
    event.preventDefault();
  });
}

// -------------------------------------------------------------------------------------------------------------- parts

const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`);

function choosePeer(id) {
  peer = id;
  const { patterns } = demo.peers.find((each) => each.id === id);
  const named = (relation) => listed(patterns.filter((each) => each.relation === relation).map((each) => each.name));
  const told = { learnt: "learnt ", otherwise: "learnt another completion than most: ", never: "was never shown " };
  const known = Object.keys(told).filter((relation) => named(relation)).map((relation) => told[relation] + named(relation));
  at("knows").textContent = `${id} ${known.join("; it ")}.`;
  at("presets").replaceChildren(...patterns.map((pattern) => {
    const button = el("button", { type: "button" }, `half of ${pattern.name} `, el("small", { class: pattern.relation }, RELATIONS[pattern.relation]));
    button.addEventListener("click", () => giveCells([...pattern.half]));
    return button;
  }));
  showGiven();
  ask();
}

function choosePeers() {
  const strange = demo.peers.flatMap(({ patterns }) => patterns).find((each) => each.relation === "otherwise").name;
  const samples = { learnt: strange[0], otherwise: strange, never: "–" };
  at("tags").replaceChildren(...Object.keys(samples).map((relation) => el("li", {}, el("span", { class: `tag ${relation}` }, samples[relation]), RELATIONS[relation])));
  at("peers").replaceChildren(...demo.peers.map(({ id, patterns }) => {
    const input = el("input", { type: "radio", name: "peer", value: id });
    input.checked = id === peer;
    input.addEventListener("change", () => choosePeer(id));
    const tags = patterns.map(({ name, relation }) => el("span", { class: `tag ${relation}`, title: `${name}: ${RELATIONS[relation]}` }, relation === "never" ? "–" : name));
    return el("label", {}, input, el("span", { class: "name" }, id), ...tags);
  }));
}

function chooseMethods() {
  const choices = [{ id: ALL, name: "side by side" }, ...demo.methods];
  const buttons = choices.map(({ id, name }) => {
    const button = el("button", { type: "button", "aria-pressed": String(id === view) }, name);
    button.addEventListener("click", () => {
      view = id;
      buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
      at("out").classList.toggle("alone", view !== ALL);
      for (const [method, panel] of panels) panel.box.hidden = view !== ALL && view !== method;
    });
    return button;
  });
  at("methods").replaceChildren(...buttons);
  at("out").replaceChildren(...demo.methods.map(({ id, name }) => {
    const panel = {
      units: svg("svg", { class: "units", role: "img", "aria-label": `hidden units, ${name}` }), count: el("p", { class: "count" }),
      answer: el("div", { class: "cells answer", role: "img" }), cells: given.map((_, n) => el("i", { class: place(n), "data-place": place(n) })),
      verdict: el("p", { class: "verdict" }), says: el("p", { class: "says" }),
    };
    laidOut(panel.answer, panel.cells);
    panel.box = el("article", { "data-method": id }, el("h3", {}, name), panel.units, panel.count, panel.answer, panel.verdict, panel.says);
    panels.set(id, panel);
    return panel.box;
  }));
}

function scores({ headings, rows, best }) {
  const head = headings.map((heading, n) => el("th", { scope: "col", class: n ? "number" : null }, heading));
  const cell = (text, n) => (n ? el("td", { class: "number", "data-label": headings[n] }, text) : el("th", { scope: "row" }, text));
  at("scores").replaceChildren(el("table", { class: "folds" }, el("caption", {}, "Scores by method"), el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...rows.map((row, n) => el("tr", { class: n === best ? "best" : null }, ...row.map(cell))))));
}

function flipTwo() {
  const first = Math.floor(Math.random() * given.length);
  const second = (first + 1 + Math.floor(Math.random() * (given.length - 1))) % given.length;
  giveCells(given.map((on, n) => (n === first || n === second ? 1 - on : on)));
}

async function begin() {
  demo = await (await fetch("/demo.json")).json();
  ({ peer, given } = demo.start);
  at("facts").replaceChildren(...demo.facts.map((fact) => el("span", {}, fact)));
  at("rule").textContent = demo.rule;
  at("lesson").textContent = demo.lesson;
  grid();
  choosePeers();
  chooseMethods();
  scores(demo.scores);
  at("flip").addEventListener("click", flipTwo);
  at("clear").addEventListener("click", () => giveCells(given.map(() => 0)));
  at("step").addEventListener("click", () => {
    clearTimeout(timer);
    if (answers !== null) to((stage + 1) % 3);
  });
  choosePeer(peer);
}

begin().catch(trouble);
