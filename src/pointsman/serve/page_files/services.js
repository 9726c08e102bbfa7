const PAGE = 50, MAX_ENDPOINTS = 100, MAX_EVENTS_IN_ROW = 5, MAX_OPENED = 2;
const CLIENTS = { pod: "a pod of this node", node: "this node", outside: "an external client" };
const COLUMNS = [["name", "Service"], ["address", "Addresses"], ["traffic", "Connections/s"], ["endpoints", "Endpoints"], ["state", "State"]];
const open = new Set(), lines = new Map();
let offset = 0, fresh = true, sort = "name", reverse = false;

function showColumns() {
  byId("columns").replaceChildren(...COLUMNS.map(([name, title]) => {
    const direction = name !== sort ? "none" : reverse ? "descending" : "ascending";
    const button = make("button", { type: "button", class: "sort" }, title, make("span", { "aria-hidden": "true" },
      { none: "", ascending: " ▲", descending: " ▼" }[direction]));
    onClick(button, async () => {
      reverse = name === sort ? !reverse : false;
      sort = name; offset = 0;
      showColumns();
      byId("columns").querySelector("." + name + " button").focus();
      await showServices();
    });
    return make("th", { scope: "col", class: name, "aria-sort": direction }, button);
  }));
}
const breakLines = (values) => values.flatMap((value, index) => (index ? [make("br"), value] : [value]));
const keyOf = (row) => [row.service, row.port, row.protocol, row.family].join("|");
const tail = (figures) => [count(figures.open, "open").replace(/s$/, ""), figures.bytesPerSecond === null ? "" : size(figures.bytesPerSecond) + "/s"].filter(Boolean).join(" · ");

function serviceCells(row, changed) {
  const figures = row.traffic;
  const places = row.frontends.map((frontend) => make("span", {}, make("span", { class: "faint" }, frontend.kind + " "), make("code", {}, frontend.address)));
  const extras = [[...new Set(row.frontends.map((frontend) => frontend.policy))].join("/"), row.affinitySeconds ? "sticky" : "", row.topology, row.scheduler,
    row.resetsGone ? "reset-gone" : ""].filter((text) => text && text !== "Cluster").join(", ");
  return [
    make("td", { class: "address" }, ...breakLines(places), extras ? make("div", { class: "faint" }, extras) : null),
    figures ? make("td", { class: "traffic" }, make("span", { class: "line" }, spark(figures.rates), make("span", { class: "figure" }, (figures.counted ? "" : "≥ ") + rate(figures.connectionsPerSecond))),
      make("div", { class: "faint" }, tail(figures))) : make("td", { class: "traffic faint" }, "–"),
    make("td", { class: "endpoints" }, `${row.usable} of ${row.total}`, make("div", { class: "faint" }, row.local + " here")),
    make("td", { class: "state" }, make("span", { class: "badge " + row.state }, row.state), changed ? make("div", { class: "faint" }, "since " + clock(changed.at)) : null, ...row.findings.map((finding) => make("div", { class: "faint" }, finding.message))),
  ];
}
function serviceLine(row) {
  const key = keyOf(row), changed = row.state === "healthy" ? null : findStateChange(row), signature = JSON.stringify([row, changed]);
  let line = lines.get(key);
  if (!line) {
    const button = make("button", { type: "button", class: "open", "aria-expanded": "false" }, row.service + (row.port ? ":" + row.port : ""));
    const name = make("td", { class: "name" }, button, make("div", { class: "faint" }, `${row.protocol} ${row.number} · ${row.family}`));
    line = { row, button, detail: null, element: make("tr", { class: "service", "data-service": row.service }, name) };
    onClick(line.element, (event) => { if (!event.target.closest("a") && !String(getSelection())) toggle(key); });
    lines.set(key, line);
  }
  if (line.signature !== signature) {
    while (line.element.children.length > 1) line.element.lastElementChild.remove();
    line.element.append(...serviceCells(row, changed));
    line.signature = signature;
  }
  line.row = row;
  return line;
}
async function toggle(key) {
  const line = lines.get(key);
  if (open.delete(key)) {
    line.button.setAttribute("aria-expanded", "false");
    if (line.detail) line.detail.remove();
    line.detail = null;
    return;
  }
  open.add(key);
  await showDetail(line);
  if (line.detail) line.element.after(line.detail);
}
// The detail of an open row is replaced only where it changed, or links in it would lose the focus.
async function showDetail(line) {
  line.button.setAttribute("aria-expanded", "true");
  const row = line.row, target = row.service + ":" + (row.port || row.number) + "/" + row.protocol;
  let parts;
  try {
    const [answer, traffic] = await Promise.all([data("explain.json?target=" + encodeURIComponent(target)), data("traffic.json?service=" + encodeURIComponent(row.service))]);
    parts = [answer.ports.filter((port) => port.family === row.family), traffic.endpoints[[row.port, row.protocol, row.family].join("/")] || {},
      listEvents([row.service]).filter((event) => event.service === row.service && event.family === row.family).slice(0, MAX_EVENTS_IN_ROW)];
  } catch (error) { parts = String(error.message); }
  const signature = JSON.stringify(parts);
  if (!open.has(keyOf(row)) || (line.detail && line.detailSignature === signature)) return;
  line.detailSignature = signature;
  const cell = make("td", { colspan: COLUMNS.length }, ...(typeof parts === "string" ? [parts] : detailParts(row, ...parts)));
  if (line.detail) line.detail.replaceChildren(cell);
  else line.detail = make("tr", { class: "detail" }, cell);
}
function detailParts(row, ports, figures, recent) {
  const parts = [];
  for (const port of ports) {
    parts.push(...port.findings.map((finding) => make("p", { class: "finding " + (finding.severity === "error" ? "down" : "partial") }, make("strong", {}, finding.code), ": " + finding.message,
      finding.remedy ? make("span", { class: "remedy" }, "→ " + finding.remedy) : null)));
    parts.push(endpointTable(row, port.endpoints, figures));
    parts.push(make("ul", { class: "outcomes" }, ...port.frontends.flatMap((frontend) => frontend.outcomes.map((outcome) =>
      make("li", {}, make("strong", {}, `${frontend.kind} from ${outcome.address || CLIENTS[outcome.client]}`), `: ${outcome.message}`)))));
  }
  const filter = onClick(make("button", { type: "button" }, "All events of this Service"), () => { filterEvents(row.service); byId("filter").focus(); });
  parts.push(make("ol", { class: "recent" }, ...recent.map((event) => make("li", { class: event.severity }, make("time", {}, clock(event.at)), ` ${event.message}`))), filter);
  return parts;
}
function endpointTable(row, endpoints, figures) {
  const known = new Set(endpoints.map((endpoint) => endpoint.address));
  const gone = Object.keys(figures).filter((address) => !known.has(address)).map((address) => ({ address, uses: [], pod: "", node: "", gone: true }));
  const all = [...endpoints, ...gone];
  if (!all.length) return make("p", { class: "empty" }, "No endpoint");
  const number = (endpoint, name) => (figures[endpoint.address] || {})[name] || 0;
  const heads = ["Endpoint", "Pod, node", "Used for policy", "Connections/s", "Open", "Share"];
  const rows = all.slice(0, MAX_ENDPOINTS).map((endpoint) => {
    const share = number(endpoint, "share");
    const uses = endpoint.gone ? "removed, still has connections" : endpoint.uses.map((use) => `${use.policy}: ${use.used ? "in" : "out"}, ${use.message}`).join("; ");
    const cells = [make("code", {}, endpoint.address), [endpoint.pod, endpoint.node].filter(Boolean).join(", ") || "–", uses,
      make("span", { class: "line" }, spark((figures[endpoint.address] || { rates: [] }).rates), make("span", { class: "figure" }, rate(number(endpoint, "connectionsPerSecond")))),
      String(number(endpoint, "open")), make("span", { class: "line" }, bar(share), make("span", { class: "figure" }, Math.round(share * 100) + " %"))];
    return make("tr", {}, ...cells.map((cell, index) => make("td", { "data-label": heads[index] }, cell)));
  });
  const more = all.length > MAX_ENDPOINTS ? make("p", { class: "faint" }, `and ${all.length - MAX_ENDPOINTS} more: pointsman top ${row.service}`) : null;
  return make("div", {}, make("table", { class: "endpoint-list" }, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...rows)), more);
}
async function showServices() {
  const query = `services.json?search=${encodeURIComponent(byId("search").value)}&offset=${offset}&limit=${PAGE}&sort=${sort}${reverse ? "&reverse" : ""}`;
  let page;
  try { page = await data(query); } catch (error) {
    place(byId("services"), [make("tr", {}, make("td", { colspan: COLUMNS.length }, String(error.message)))]);
    return {};
  }
  const shownLines = page.ports.map(serviceLine);
  if (fresh && byId("search").value && new Set(page.ports.map((row) => row.service)).size === 1) page.ports.slice(0, MAX_OPENED).forEach((row) => open.add(keyOf(row)));
  fresh = false;
  await Promise.all(shownLines.filter((line) => open.has(keyOf(line.row))).map(showDetail));
  const nodes = shownLines.flatMap((line) => (line.detail && open.has(keyOf(line.row)) ? [line.element, line.detail] : [line.element]));
  if (!nodes.length) nodes.push(make("tr", {}, make("td", { class: "empty", colspan: COLUMNS.length }, page.total ? "No service port matches the search" : "No Services yet")));
  place(byId("services"), nodes);
  const kept = new Set([...open, ...shownLines.map((line) => keyOf(line.row))]);
  for (const key of lines.keys()) if (!kept.has(key)) lines.delete(key);
  byId("found").textContent = page.found === page.total ? count(page.total, "service port") : `${page.found.toLocaleString()} of ${page.total.toLocaleString()}`;
  byId("range").textContent = page.ports.length ? `${offset + 1} to ${offset + page.ports.length} of ${page.found.toLocaleString()}` : "";
  byId("pager").hidden = page.found <= PAGE;
  byId("previous").disabled = offset === 0;
  byId("next").disabled = offset + page.ports.length >= page.found;
  fill("notes", page.notes, () => page.notes.map((note) => make("li", {}, note)));
  return page.totals;
}
