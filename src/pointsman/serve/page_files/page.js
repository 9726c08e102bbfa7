const REFRESH = 5000;
let timer = null;

function familyCard(family, figures) {
  const good = family.history.filter((sync) => !sync.error).map((sync) => sync.seconds).sort((a, b) => a - b);
  const facts = [["Service ports", family.servicePorts.toLocaleString()], ["Endpoints", family.endpoints.toLocaleString()],
    ...[["Pending", family.pending], ["Without local", family.withoutLocalEndpoints], ["Refused", Object.keys(family.rejected).length], ["Repaired", family.driftRepaired]].filter(([, value]) => value)];
  if (figures) {
    facts.unshift(["Connections/s", rate(figures.connectionsPerSecond), spark(figures.rates)], ["Open", figures.open.toLocaleString()]);
  }
  const list = make("dl", {}, ...facts.map(([name, value, drawing]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value), drawing))));
  const caption = family.history.length
    ? `Last sync ${ago(family.lastSyncAge)}; of the last ${family.history.length}: median ${good.length ? duration(good[Math.floor(good.length / 2)]) : "–"}, ` +
      `slowest ${duration(Math.max(...family.history.map((sync) => sync.seconds)))} (logarithmic; full syncs stronger, failed ones red)`
    : "No sync yet";
  return make("div", { class: "card" }, make("div", {}, make("h2", {}, family.family), list),
    make("div", {}, chart(family.history), make("p", { class: "caption" }, caption)));
}
const isUsed = (family) => family.servicePorts || family.endpoints || family.pending || family.lastError || Object.keys(family.rejected).length;
function showStatus(status, totals) {
  byId("summary").textContent = `${status.mode} mode on ${status.node}` + (status.zone ? ` in zone ${status.zone}` : "") +
    ` (${status.addresses.join(", ")}), up ${age(status.uptime)}, version ${status.version}`;
  document.title = "Pointsman on " + status.node;
  const failing = status.conditions.filter((condition) => condition.status === "False");
  const total = Object.values(status.serviceStates).reduce((sum, number) => sum + number, 0);
  const unserved = [["down", "down"], ["partial", "partial (some clients fail)"]].filter(([state]) => status.serviceStates[state]);
  fill("conditions", [failing.map(({ since, ...condition }) => condition), status.serviceStates], () => {
    const list = [...failing.map((condition) => make("li", { class: condition.blocks === "nothing" ? "degraded" : "failing" }, make("strong", {}, condition.type), " ",
      condition.message + (condition.remedy ? ": " + condition.remedy : ""), make("span", { class: "faint" }, ` since ${clock(condition.since)}`))),
    ...unserved.map(([state, text]) => make("li", { class: state === "down" ? "failing" : "notice" }, `${status.serviceStates[state]} of ${total} service ports ` +
      `${status.serviceStates[state] === 1 ? "is" : "are"} ${text}`, searchLink(state, "show them")))];
    list.sort((a, b) => b.classList.contains("failing") - a.classList.contains("failing"));
    return list.length ? list : [make("li", { class: "healthy" }, "No known problems")];
  });
  fill("states", status.serviceStates, () => Object.entries(status.serviceStates).map(([state, number]) =>
    make("a", { class: "badge " + (number ? state : "faint"), href: "#" + state }, `${number.toLocaleString()} ${state}`)));
  const used = status.families.filter(isUsed), unused = status.families.filter((family) => !isUsed(family));
  const cards = (used.length ? used : status.families.slice(0, 1)).map((family) => familyCard(family, (totals || {})[family.family]));
  byId("families").replaceChildren(...cards, ...(used.length && unused.length ? [make("p", { class: "caption" }, `No Services in ${unused.map((family) => family.family).join(", ")}`)] : []));
  byId("watches").replaceChildren(...status.watches.map((watch) => make("tr", {},
    make("td", {}, make("strong", {}, watch.kind)), make("td", {}, (watch.connected ? "connected" : "not connected") + (watch.synced ? "" : ", not listed yet")),
    ...[["Last event", ago(watch.age)], ["Objects", watch.objects.toLocaleString()], ["Unusable", watch.badObjects], ["Failures", watch.failures]]
      .map(([name, value]) => make("td", { class: "number", "data-label": name }, String(value))))));
}
async function refresh() {
  clearTimeout(timer);
  try {
    const status = data("status.json");
    await loadEvents();
    const totals = await showServices();
    showStatus(await status, totals);
    byId("refreshed").textContent = "· refreshed " + clock(Date.now() / 1000);
    // The first figures come from two readings of the kernel: they are there a little later.
    timer = setTimeout(refresh, Object.keys(totals || {}).length ? REFRESH : REFRESH / 3);
  } catch (error) {
    fill("conditions", String(error.message), () => [make("li", { class: "failing" }, "The proxy does not answer: " + error.message)]);
    timer = setTimeout(refresh, REFRESH);
  }
}
function followAddress() {
  try { byId("search").value = decodeURIComponent(location.hash.slice(1)); } catch { location.hash = ""; }
  offset = 0; fresh = true;
}
followAddress();
showColumns();
addEventListener("hashchange", () => { followAddress(); showServices(); byId("search-form").scrollIntoView({ block: "nearest" }); });
// A page that is not seen asks for nothing, and sampling ends.
document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else refresh(); });
byId("search").addEventListener("input", () => { offset = 0; fresh = true; history.replaceState(null, "", "#" + encodeURIComponent(byId("search").value)); showServices(); });
byId("search-form").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); showServices(); });
byId("next").addEventListener("click", () => { offset += PAGE; showServices(); });
refresh();
