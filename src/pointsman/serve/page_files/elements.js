"use strict";
const byId = (id) => document.getElementById(id);

// Everything the cluster names goes through here as text; nothing is ever parsed as markup.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
function makeSvg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function onClick(node, act) {
  node.addEventListener("click", act);
  return node;
}

// Elements that stay keep their place, so that the focus and the selection survive a refresh.
function place(parent, nodes) {
  nodes.forEach((node, index) => { if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] || null); });
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}
// Does nothing while the data stays the same: a screen reader announces changes only.
const shown = new Map();
function fill(id, data, build) {
  const text = JSON.stringify(data);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  byId(id).replaceChildren(...build());
}

function age(seconds) {
  if (seconds === null) return "never";
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}
const ago = (seconds) => (seconds === null ? "never" : age(seconds) + " ago");
function duration(seconds) {
  if (seconds < 0.001) return Math.round(seconds * 1e6) + " µs";
  return (seconds < 0.01 ? (seconds * 1000).toFixed(1) : Math.round(seconds * 1000)) + " ms";
}
function clock(moment) {
  const date = new Date(moment * 1000), time = date.toLocaleTimeString([], { hour12: false });
  return date.toDateString() === new Date().toDateString() ? time : date.toLocaleDateString() + " " + time;
}
const rate = (number) => (number >= 100 ? Math.round(number).toLocaleString() : number >= 10 ? number.toFixed(1) : number.toFixed(number ? 2 : 0));
function size(bytes) {
  const power = bytes < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return (bytes / 1000 ** power).toPrecision(bytes < 1000 ? 3 : 3).replace(/\.0+$/, "") + " " + ["B", "kB", "MB", "GB", "TB"][power];
}
const count = (number, noun) => `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;
const searchLink = (search, text) => make("a", { class: "search", href: "#" + encodeURIComponent(search) }, text);

async function data(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// Charts say nothing to a screen reader that the text beside them does not say.
function spark(rates) {
  const width = 60, height = 18, tallest = Math.max(...rates, 0.01), step = width / 59;
  const points = rates.map((value, index) => [(width - (rates.length - 1 - index) * step).toFixed(1), (height - 1 - (value / tallest) * (height - 2)).toFixed(1)]);
  const svg = makeSvg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", preserveAspectRatio: "none" });
  if (points.length > 1) {
    const line = points.map((point) => point.join(",")).join(" ");
    svg.append(makeSvg("polygon", { points: `${points[0][0]},${height} ${line} ${width},${height}` }), makeSvg("polyline", { points: line }));
  }
  return svg;
}
function bar(share) {
  return makeSvg("svg", { class: "share", viewBox: "0 0 100 8", "aria-hidden": "true", preserveAspectRatio: "none" },
    makeSvg("rect", { class: "track", width: 100, height: 8 }), makeSvg("rect", { width: (100 * share).toFixed(1), height: 8 }));
}
// Bars grow with the logarithm, so that one full sync does not flatten a hundred small ones.
function chart(history) {
  const width = 480, height = 48, step = width / Math.max(60, history.length);
  const scale = (seconds) => Math.log10(Math.max(1e-5, seconds) / 1e-5);
  const tallest = scale(Math.max(0.001, ...history.map((sync) => sync.seconds)));
  const bars = history.map((sync, index) => {
    const tall = sync.error ? height : Math.max(2, (scale(sync.seconds) / tallest) * (height - 4));
    const kind = sync.error ? "failed" : sync.full ? "full" : "sync";
    const text = clock(sync.at) + ": " + (sync.error ? "failed: " + sync.error : duration(sync.seconds) + ", " + sync.changed + " changed" + (sync.full ? ", full" : ""));
    return makeSvg("rect", { x: (index * step).toFixed(1), y: (height - tall).toFixed(1), width: Math.max(1, step - 1).toFixed(1),
      height: tall.toFixed(1), class: kind }, makeSvg("title", {}, text));
  });
  return makeSvg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `durations of the last ${history.length} syncs` }, ...bars);
}
