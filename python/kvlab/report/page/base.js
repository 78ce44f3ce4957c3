"use strict";
// The page's data, and helpers that every part uses. Text goes into the page as text, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const FONT = { family: 'Arial, Helvetica, "Liberation Sans", sans-serif', size: 12, color: "#1b1b3a" };
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
// Colour and pattern of each phase of a request: they differ in lightness and pattern, too.
const LOOKS = {
  queued: ["#d08a00", ""], prefill: ["#1b1b3a", ""], decode: ["#5aa9d6", ""], preempted: ["#8c1d40", "x"], transfer: ["#2f8f6b", "/"],
  policy: ["#b565a7", "."],
};
const RUN_COLOURS = ["#1f5fa8", "#b8500c"];

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function section(id, title, ...children) {
  const made = el("section", { id }, el("h2", {}, title), ...children);
  document.getElementById("main").append(made);
  document.getElementById("nav").append(el("a", { href: "#" + id }, title));
  return made;
}

// A labelled list of choices; `options` are [value, text].
function choice(label, id, options, onchange) {
  const choices = options.map(([value, text]) => el("option", { value: String(value) }, text));
  const list = el("select", { id, onchange: () => onchange(list.value) }, ...choices);
  return { list, field: el("label", {}, label, list) };
}

function short(x) {
  if (typeof x !== "number" || !isFinite(x)) return "";
  if (Number.isInteger(x)) return x.toLocaleString("en-US");
  const size = Math.abs(x);
  if (size >= 1e4) return Math.round(x).toLocaleString("en-US");
  if (size < 1e-4) return x.toExponential(2);
  return Number(x.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 8 });
}

// Microseconds as ms, from ten seconds on as s; "" below 0, where an instant never came.
function duration(us) {
  if (!(us >= 0)) return "";
  return us >= 1e7 ? short(us / 1e6) + " s" : short(us / 1e3) + " ms";
}

function difference(us) {
  return us < 0 ? "−" + duration(-us) : us > 0 ? "+" + duration(us) : "0";
}

function runName(run) {
  return DATA.results.length > 1 ? DATA.results[run.result].name + ": " + run.label : run.label;
}

function layout(more) {
  const base = { font: FONT, margin: { l: 62, r: 16, t: 30, b: 46 }, paper_bgcolor: "white", plot_bgcolor: "white", hovermode: "closest" };
  const axis = { gridcolor: "#e2e2e8", linecolor: "#808080", zeroline: false };
  const result = { ...base, ...more };
  for (const key of Object.keys(result)) if (/^[xy]axis\d*$/.test(key)) result[key] = { ...axis, ...result[key] };
  return result;
}

function draw(place, traces, more) {
  return Plotly.react(place, traces, layout(more), CONFIG);
}
