const EVENTS_SHOWN = 40, MAX_EVENTS = 1000;
const events = new Map(), items = new Map();
let revision = 0, eventsShown = EVENTS_SHOWN;

async function loadEvents() {
  const answer = await data("events.json?since=" + revision);
  revision = answer.revision;
  for (const event of answer.events) { events.set(event.number, event); items.delete(event.number); }
  for (const number of [...events.keys()].sort((a, b) => a - b).slice(0, -MAX_EVENTS)) events.delete(number);
  showEvents();
}
function listEvents(terms) {
  const text = (event) => `${event.service} ${event.kind} ${event.family} ${event.message}`.toLowerCase();
  return [...events.values()].filter((event) => terms.every((term) => text(event).includes(term))).sort((a, b) => b.at - a.at || b.number - a.number);
}
const STATE_KINDS = new Set(["ServiceDown", "ServicePartial", "ServiceHealthy"]);
// When a row that is down or partial became so; null where that was before the first event.
function findStateChange(row) {
  const last = listEvents([]).find((event) => event.service === row.service && event.family === row.family && STATE_KINDS.has(event.kind));
  return last && last.kind === { down: "ServiceDown", partial: "ServicePartial" }[row.state] ? last : null;
}
function eventItem(event) {
  const until = event.count > 1 && event.until - event.at >= 1 ? ` to ${clock(event.until)}` : "";
  return make("li", { class: event.severity },
    make("p", { class: "when" }, make("time", { datetime: new Date(event.at * 1000).toISOString() }, clock(event.at) + until), event.family ? " · " + event.family : ""),
    make("p", {}, make("strong", {}, event.kind.replace(/(?<=[a-z])(?=[A-Z])/g, " ")), " ", event.service ? searchLink(event.service, event.service) : ""),
    make("p", { class: "what" }, event.message));
}
function showEvents() {
  const found = listEvents(byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean));
  const nodes = found.slice(0, eventsShown).map((event) => {
    if (!items.has(event.number)) items.set(event.number, eventItem(event));
    return items.get(event.number);
  });
  if (!nodes.length) nodes.push(make("li", { class: "empty" }, events.size ? "No event matches the filter" : "No event yet"));
  place(byId("events"), nodes);
  byId("older").hidden = found.length <= eventsShown;
}
function filterEvents(text) {
  byId("filter").value = text;
  eventsShown = EVENTS_SHOWN;
  showEvents();
}
byId("filter").addEventListener("input", () => filterEvents(byId("filter").value));
byId("older").addEventListener("click", () => { eventsShown += EVENTS_SHOWN; showEvents(); });
