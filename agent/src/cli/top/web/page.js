// Shows the samples of `tartan top --web`. Elements are kept from sample to sample and only their text changes, so that the
// focus, a selection and the place of a screen reader stay.
"use strict";

const SAMPLES = 120;
const SHOWN_AT_FIRST = 20;
const byId = (id) => document.getElementById(id);

// Of every table: which column sorts it, whether backwards, and whether all of its rows are shown.
const views = new Map();
const history = [];
// What came last, and what is shown: they differ while paused.
let newest = null;
let latest = null;
let paused = false;
// Why there is nothing new.
let fault = null;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function say(at, text) {
  if (at.textContent !== text) at.textContent = text;
}

// Makes `parent` have `count` children, made by `make` where some are missing.
function children(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make(parent.children.length));
  return parent.children;
}

function bits(rate) {
  for (const [unit, name] of [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]]) {
    if (rate >= unit) return `${(rate / unit).toPrecision(3)} ${name}`;
  }
  return `${rate.toFixed(0)} bit/s`;
}

function show(frame) {
  document.title = `${frame.problems.length ? `(${frame.problems.length}) ` : ""}${frame.node} - Tartan`;
  say(byId("node"), frame.node);
  say(byId("facts"), `Tartan ${frame.version}, format ${frame.format}, device ${frame.device}, up ${frame.uptime}`);
  showProblems(frame.problems);
  showPath(frame);
  showChart();
  for (const table of frame.tables) showTable(table);
}

function showProblems(problems) {
  const at = byId("problems");
  const articles = children(at, problems.length, () =>
    element("article", {}, element("p", {}, element("strong"), " ", element("span")), element("p")));
  problems.forEach((problem, index) => {
    const article = articles[index];
    article.className = problem.severity;
    say(article.querySelector("strong"), `${problem.severity.toUpperCase()} ${problem.code}`);
    say(article.querySelector("span"), problem.sentence);
    say(article.lastElementChild, problem.remedy ? `Remedy: ${problem.remedy}` : "");
  });
}

function showPath(frame) {
  const strips = children(byId("strips"), frame.path.length, () => element("div", { class: "strip", role: "group" }));
  frame.path.forEach((strip, index) => {
    const row = strips[index];
    row.setAttribute("aria-label", `from ${strip.from} to ${strip.to}`);
    // from, then an arrow and a stage for each, then an arrow and to
    const cells = children(row, 2 * strip.stages.length + 3, (place) => {
      if (place === 0) return element("span");
      if (place % 2 === 1) return element("span", { class: "arrow", "aria-hidden": "true" }, "→");
      return place === 2 * strip.stages.length + 2
        ? element("span")
        : element("div", { class: "stage" }, element("b"), element("span"), element("br"), element("small"));
    });
    say(cells[0], strip.from);
    say(cells[cells.length - 1], strip.to);
    strip.stages.forEach((stage, at) => {
      const box = cells[2 * at + 2];
      box.className = stage.loses ? "stage loses" : "stage";
      say(box.querySelector("b"), stage.name);
      say(box.querySelector("span"), stage.rate);
      say(box.querySelector("small"), stage.total);
    });
  });
  const notes = children(byId("notes"), frame.notes.length, () => element("li"));
  frame.notes.forEach((note, index) => say(notes[index], note));
}

function showChart() {
  const known = history.filter((sample) => sample.sent !== null && sample.received !== null);
  if (known.length === 0) return;
  const top = Math.max(1, ...known.map((sample) => Math.max(sample.sent, sample.received)));
  const line = (of) => known
    .map((sample, index) => `${SAMPLES - known.length + index},${(39 - (38 * of(sample)) / top).toFixed(2)}`)
    .join(" ");
  byId("chart-sent").setAttribute("points", line((sample) => sample.sent));
  byId("chart-received").setAttribute("points", line((sample) => sample.received));
  const last = known[known.length - 1];
  say(byId("chart-caption"),
    `To peers ${bits(last.sent)} (line), from peers ${bits(last.received)} (dashes); the last ${known.length} samples, highest ${bits(top)}.`);
}

function section(table) {
  const name = table.name;
  const head = element("tr");
  table.sheet.columns.forEach((column, index) => {
    const button = element("button", { type: "button" }, column.heading);
    button.addEventListener("click", () => sortBy(name, index));
    head.append(element("th", { scope: "col", ...(column.is_number ? { class: "number" } : {}) }, button));
  });
  const more = element("button", { type: "button", id: `${name}-more`, hidden: "" });
  more.addEventListener("click", () => {
    const view = views.get(name);
    view.all = !view.all;
    if (latest) show(latest);
  });
  const made = element("section", { id: name, "aria-labelledby": `${name}-heading` },
    element("h2", { id: `${name}-heading` }, name),
    element("div", { class: "scroll", role: "group", "aria-labelledby": `${name}-heading`, tabindex: "0" },
      element("table", {}, element("caption"), element("thead", {}, head), element("tbody"))),
    more);
  byId("tables").append(made);
  byId("parts").append(element("li", {}, element("a", { href: `#${name}` }, name)));
  views.set(name, { by: table.sheet.sorted_by, backwards: false, all: false });
  return made;
}

function sortBy(name, column) {
  const view = views.get(name);
  view.backwards = view.by === column && !view.backwards;
  view.by = column;
  if (latest) show(latest);
}

// The rows as they are to be shown: numbers from the largest down, words from A; a cell without a value comes last.
function arranged(sheet, view, filter) {
  const falls = sheet.columns[view.by].is_number !== view.backwards;
  const compare = (a, b) => {
    const [one, other] = [a[view.by], b[view.by]];
    if (one.value !== null && other.value !== null) return (one.value - other.value) * (falls ? -1 : 1);
    if (one.value !== null) return -1;
    if (other.value !== null) return 1;
    return one.text.localeCompare(other.text, "en", { numeric: true }) * (view.backwards ? -1 : 1);
  };
  return sheet.rows
    .filter((row) => !filter || row.some((cell) => cell.text.toLowerCase().includes(filter)))
    .sort(compare);
}

function showTable(table) {
  const at = byId(table.name) || section(table);
  const view = views.get(table.name);
  const sheet = table.sheet;
  const rows = arranged(sheet, view, byId("filter").value.trim().toLowerCase());
  const shown = view.all ? rows : rows.slice(0, SHOWN_AT_FIRST);
  at.querySelectorAll("th").forEach((head, index) => {
    if (index !== view.by) return head.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sheet.columns[index].is_number !== view.backwards ? "descending" : "ascending");
  });
  const lines = children(at.querySelector("tbody"), shown.length, () =>
    element("tr", {}, ...sheet.columns.map((column) =>
      element("td", column.is_number ? { class: "number" } : column.heading === "MEANING" ? { class: "wide" } : {}))));
  shown.forEach((row, index) => row.forEach((cell, column) => say(lines[index].children[column], cell.text)));
  const hidden = table.more ? `, the heaviest of ${sheet.rows.length + table.more}` : "";
  say(at.querySelector("caption"), sheet.rows.length === 0 ? sheet.empty : `${shown.length} of ${rows.length} shown${hidden}`);
  at.querySelector("thead").hidden = sheet.rows.length === 0;
  const more = byId(`${table.name}-more`);
  more.hidden = rows.length <= SHOWN_AT_FIRST;
  say(more, view.all ? `Show the first ${SHOWN_AT_FIRST} alone` : `Show all ${rows.length}`);
}

function tell() {
  const last = latest ? " What follows is its last answer." : "";
  const live = latest ? "Live." : "Waiting for the first sample.";
  say(byId("state"), [fault && fault + last, paused && "Paused."].filter(Boolean).join(" ") || live);
  byId("state").className = fault ? "fault" : "";
}

const events = new EventSource("events");
events.addEventListener("frame", (event) => {
  newest = JSON.parse(event.data);
  history.push({ sent: newest.sent, received: newest.received });
  if (history.length > SAMPLES) history.shift();
  fault = null;
  if (!paused) {
    latest = newest;
    show(latest);
  }
  tell();
});
events.addEventListener("fault", (event) => {
  fault = `The agent does not answer: ${event.data}`;
  tell();
});
events.addEventListener("error", () => {
  fault = events.readyState === EventSource.CLOSED
    ? "This page is refused: too many browsers watch this node. Close one and load the page again."
    : "`tartan top --web` does not answer. It is tried again.";
  tell();
});

function pause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (!paused && newest) {
    latest = newest;
    show(latest);
  }
  tell();
}

byId("pause").addEventListener("click", pause);
byId("filter").addEventListener("input", () => latest && show(latest));
document.addEventListener("keydown", (event) => {
  if (!byId("keys").checked || event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input")) return;
  if (event.key === "p") pause();
  if (event.key === "/") {
    event.preventDefault();
    byId("filter").focus();
  }
  const part = [...document.querySelectorAll("section")][Number(event.key) - 1];
  if (part) {
    part.tabIndex = -1;
    part.focus();
    part.scrollIntoView();
  }
});
byId("parts").append(element("li", {}, element("a", { href: "#path" }, "path")));
