"use strict";
const PAGE = 50, REFRESH = 5000;
const CLIENTS = { pod: "a pod of this node", node: "this node", outside: "an external client" };
const COLUMNS = [["name", "Service"], ["address", "Addresses"], ["policy", "Policy"], ["endpoints", "Endpoints"], ["state", "State"]];
let offset = 0, open = null, timer = null, fresh = true, sort = "name", reverse = false;
const byId = (id) => document.getElementById(id);

// Everything the cluster names goes through here as text; nothing is ever parsed as markup.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
function drawn(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
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

// Bars grow with the logarithm, so that one full sync does not flatten a hundred small ones.
function chart(history) {
  const width = 480, height = 72, step = width / Math.max(60, history.length);
  const scale = (seconds) => Math.log10(Math.max(1e-5, seconds) / 1e-5);
  const tallest = scale(Math.max(0.001, ...history.map((sync) => sync.seconds)));
  const bars = history.map((sync, index) => {
    const tall = sync.error ? height : Math.max(2, (scale(sync.seconds) / tallest) * (height - 4));
    const kind = sync.error ? "failed" : sync.full ? "full" : "sync";
    const text = new Date(sync.at * 1000).toLocaleTimeString() + ": " +
      (sync.error ? "failed: " + sync.error : duration(sync.seconds) + ", " + sync.changed + " changed" + (sync.full ? ", full" : ""));
    return drawn("rect", { x: (index * step).toFixed(1), y: (height - tall).toFixed(1), width: Math.max(1, step - 1).toFixed(1),
      height: tall.toFixed(1), class: kind }, drawn("title", {}, text));
  });
  return drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `durations of the last ${history.length} syncs` }, ...bars);
}
function familyCard(family) {
  const facts = [["Since last sync", age(family.lastSyncAge)], ["Service ports", family.servicePorts.toLocaleString()],
    ["Endpoints", family.endpoints.toLocaleString()], ["Pending", family.pending], ["Without local", family.withoutLocalEndpoints],
    ["Refused", Object.keys(family.rejected).length], ["Repaired", family.driftRepaired]];
  const good = family.history.filter((sync) => !sync.error).map((sync) => sync.seconds).sort((a, b) => a - b);
  if (good.length) facts.splice(1, 0, ["Median sync", duration(good[Math.floor(good.length / 2)])]);
  const list = make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
  const caption = family.history.length
    ? `the last ${family.history.length === 1 ? "sync" : family.history.length + " syncs"}, logarithmic; slowest ` +
      `${duration(Math.max(...family.history.map((sync) => sync.seconds)))}; full ones in the stronger colour, failed ones red`
    : "no sync yet";
  return make("div", { class: "card" }, make("h2", {}, family.family), list, chart(family.history), make("p", { class: "caption" }, caption));
}
function showStatus(status) {
  byId("summary").textContent = `${status.mode} mode on ${status.node}` + (status.zone ? ` in zone ${status.zone}` : "") +
    ` (${status.addresses.join(", ")}), up ${age(status.uptime)}, version ${status.version}`;
  document.title = "Pointsman on " + status.node;
  const failing = status.conditions.filter((condition) => condition.status === "False").map((condition) =>
    make("li", { class: condition.blocks === "nothing" ? "degraded" : "failing" }, make("strong", {}, condition.type + " "),
      condition.message + (condition.remedy ? ": " + condition.remedy : "")));
  const total = Object.values(status.serviceStates).reduce((sum, count) => sum + count, 0);
  const unserved = [["down", "down"], ["partial", "partial (some clients fail)"]].filter(([state]) => status.serviceStates[state])
    .map(([state, text]) => make("li", { class: "notice" }, `${status.serviceStates[state]} of ${total} service ports ` +
      `${status.serviceStates[state] === 1 ? "is" : "are"} ${text}`, searchLink(state, "show them")));
  const list = [...failing, ...unserved];
  byId("conditions").replaceChildren(...(list.length ? list : [make("li", { class: "healthy" }, "No known problems")]));
  byId("states").replaceChildren(...Object.entries(status.serviceStates).map(([state, count]) =>
    make("a", { class: "badge " + (count ? state : "faint"), href: "#" + state }, `${count.toLocaleString()} ${state}`)));
  byId("families").replaceChildren(...status.families.map(familyCard));
  byId("watches").replaceChildren(...status.watches.map((watch) => make("tr", {},
    make("td", {}, make("strong", {}, watch.kind)), make("td", {}, (watch.connected ? "connected" : "not connected") + (watch.synced ? "" : ", not listed yet")),
    ...[["Last event", ago(watch.age)], ["Objects", watch.objects.toLocaleString()], ["Unusable", watch.badObjects], ["Failures", watch.failures]]
      .map(([name, value]) => make("td", { class: "number", "data-label": name }, String(value))))));
}
const searchLink = (search, text) => make("a", { class: "search", href: "#" + encodeURIComponent(search) }, text);
function showColumns() {
  byId("columns").replaceChildren(...COLUMNS.map(([name, title]) => {
    const direction = name !== sort ? "none" : reverse ? "descending" : "ascending";
    const button = make("button", { type: "button", class: "sort" }, title, make("span", { "aria-hidden": "true" },
      { none: "", ascending: " ▲", descending: " ▼" }[direction]));
    button.addEventListener("click", () => {
      reverse = name === sort ? !reverse : false;
      sort = name; offset = 0;
      showColumns(); showServices();
    });
    return make("th", { scope: "col", class: name, "aria-sort": direction }, button);
  }));
}
function lines(values) {
  return values.flatMap((value, index) => (index ? [make("br"), value] : [value]));
}
function serviceRow(row) {
  const name = row.service + (row.port ? ":" + row.port : "");
  const places = row.frontends.map((frontend) => make("span", {}, make("span", { class: "faint" }, frontend.kind + " "), make("code", {}, frontend.address)));
  const policies = [...new Set(row.frontends.map((frontend) => frontend.policy))].join(" / ");
  const extras = [row.affinitySeconds ? "sticky" : "", row.topology, row.scheduler, row.resetsGone ? "reset-gone" : ""].filter(Boolean).join(", ");
  const line = make("tr", { class: "service", tabindex: "0", role: "button", "aria-expanded": "false", "data-service": row.service },
    make("td", { class: "name" }, make("strong", {}, name), make("br"), make("span", { class: "faint" }, `${row.protocol} ${row.number} · ${row.family}`)),
    make("td", { class: "address" }, ...lines(places)),
    make("td", { class: "policy" }, policies, extras ? make("br") : null, extras ? make("span", { class: "faint" }, extras) : null),
    make("td", { class: "endpoints" }, `${row.usable} of ${row.total}`, make("br"), make("span", { class: "faint" }, row.local + " here")),
    make("td", { class: "state" }, make("span", { class: "badge " + row.state }, row.state), ...row.findings.map((finding) => make("div", { class: "faint" }, finding.message))));
  const key = [row.service, row.port, row.protocol, row.family].join("|");
  line.addEventListener("click", () => toggle(key, row, line));
  line.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(key, row, line); } });
  line.dataset.key = key;
  return line;
}
async function toggle(key, row, line) {
  const shown = line.nextSibling;
  if (shown && shown.className === "detail") { shown.remove(); line.setAttribute("aria-expanded", "false"); open = null; return; }
  open = key;
  line.setAttribute("aria-expanded", "true");
  line.after(await detail(row));
}
async function detail(row) {
  const target = row.service + ":" + (row.port || row.number) + "/" + row.protocol;
  const cell = make("td", { colspan: "5" });
  try {
    const answer = await data("explain.json?target=" + encodeURIComponent(target));
    for (const port of answer.ports.filter((port) => port.family === row.family)) {
      cell.append(...port.findings.map((finding) => make("p", { class: "finding " + (finding.severity === "error" ? "down" : "partial") }, make("strong", {}, finding.code), ": " + finding.message,
        finding.remedy ? make("span", { class: "remedy" }, "→ " + finding.remedy) : null)));
      cell.append(make("ul", {}, ...port.frontends.flatMap((frontend) => frontend.outcomes.map((outcome) =>
        make("li", {}, `${frontend.kind} from ${outcome.address || CLIENTS[outcome.client]}: ${outcome.message}`)))));
      cell.append(make("ul", {}, ...port.endpoints.slice(0, 100).map((endpoint) => make("li", {}, make("code", {}, endpoint.address),
        ` on ${endpoint.node || "no named node"}: ` + endpoint.uses.map((use) => `${use.policy}: ${use.used ? "in" : "out"}, ${use.message}`).join("; ")))));
    }
  } catch (error) { cell.append(String(error.message)); }
  return make("tr", { class: "detail" }, cell);
}
async function showServices() {
  const query = `services.json?search=${encodeURIComponent(byId("search").value)}&offset=${offset}&limit=${PAGE}&sort=${sort}${reverse ? "&reverse" : ""}`;
  let page;
  try { page = await data(query); } catch (error) {
    byId("services").replaceChildren(make("tr", {}, make("td", { colspan: "5" }, String(error.message))));
    return;
  }
  const rows = page.ports.map(serviceRow);
  if (page.found === 1 && fresh) open = rows[0].dataset.key;
  fresh = false;
  const reopened = page.ports.find((row, index) => rows[index].dataset.key === open);
  const extra = reopened ? await detail(reopened) : null;
  byId("services").replaceChildren(...rows);
  if (extra) { const line = rows[page.ports.indexOf(reopened)]; line.setAttribute("aria-expanded", "true"); line.after(extra); }
  byId("found").textContent = page.found === page.total ? `${page.total.toLocaleString()} service ports` : `${page.found.toLocaleString()} of ${page.total.toLocaleString()}`;
  byId("range").textContent = page.ports.length ? `${offset + 1} to ${offset + page.ports.length} of ${page.found.toLocaleString()}` : "nothing found";
  byId("previous").disabled = offset === 0;
  byId("next").disabled = offset + page.ports.length >= page.found;
}
async function data(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
async function refresh() {
  clearTimeout(timer);
  try {
    showStatus(await data("status.json"));
    await showServices();
    byId("refreshed").textContent = "· refreshed " + new Date().toLocaleTimeString();
  } catch (error) {
    byId("conditions").replaceChildren(make("li", {}, "The proxy does not answer: " + error.message));
  }
  timer = setTimeout(refresh, REFRESH);
}
function followAddress() {
  try { byId("search").value = decodeURIComponent(location.hash.slice(1)); } catch { location.hash = ""; }
  offset = 0; fresh = true;
}
followAddress();
showColumns();
addEventListener("hashchange", () => { followAddress(); showServices(); byId("search-form").scrollIntoView({ block: "start" }); });
byId("search").addEventListener("input", () => { offset = 0; fresh = true; history.replaceState(null, "", "#" + encodeURIComponent(byId("search").value)); showServices(); });
byId("search-form").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); showServices(); });
byId("next").addEventListener("click", () => { offset += PAGE; showServices(); });
refresh();
