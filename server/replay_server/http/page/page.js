// The live page: shows each event of the server. Text from the server is only ever set as textContent.

import { MINUTES, Points, ratesPlot, showHistogram } from "./charts.js";
import * as format from "./format.js";
import { Overview } from "./overview.js";

const RETRY_MS = 2000;
const SILENT_MS = 15000;
const OPEN_CARDS = 6;
const byId = (id) => document.getElementById(id);

/** Replace the rows of a part of an HTML table; each row is a list of texts. */
function fill(body, rows, tag = "td", classes = []) {
  body.replaceChildren(
    ...rows.map((texts) => {
      const row = document.createElement("tr");
      row.append(
        ...texts.map((text, i) => {
          const cell = document.createElement(tag);
          cell.textContent = text;
          if (classes[i]) cell.className = classes[i];
          return cell;
        }),
      );
      return row;
    }),
  );
}

/** Replace the items of a list of sentences. */
function list(element, sentences) {
  element.replaceChildren(
    ...sentences.map((sentence) => {
      const item = document.createElement("li");
      item.textContent = sentence;
      return item;
    }),
  );
}

/** Request the rates of a table over the last ten minutes; null if the server refuses. */
async function pointsOf(table) {
  const reply = await fetch(`history?table=${encodeURIComponent(table)}`);
  return reply.ok ? reply.json() : null;
}

/** The part of the page that shows one table of the server. */
class Card {
  constructor(name, isOpen) {
    this.name = name;
    this.points = new Points();
    this.element = byId("card").content.firstElementChild.cloneNode(true);
    this.element.open = isOpen;
    this.element.addEventListener("toggle", () => this.opened());
    this.looked = null;
    this.figures = null;
    this.plot = null;
    this.setText("name", name);
  }

  part(name) {
    return this.element.querySelector(`[data-part=${name}]`);
  }

  setText(name, text) {
    this.element.querySelector(`[data-text=${name}]`).textContent = text;
  }

  /** Load the rates of the last ten minutes. */
  async loadHistory() {
    const points = await pointsOf(this.name).catch(() => null); // the server may stop before or during its reply
    if (!points) return;
    this.points.merge(points);
    this.plot?.setData(this.points.columns);
  }

  opened() {
    if (this.element.open && this.figures) this.show(this.figures);
  }

  show(figures) {
    this.figures = figures;
    this.points.append(figures.points);
    this.setText("summary", `${format.count(figures.rows)} of ${format.count(figures.capacity)} rows, ${figures.backend}`);
    list(this.part("waits"), figures.waits);
    if (!this.element.open) return;
    this.plot ??= ratesPlot(this.part("plot"), this.points, (looked) => {
      this.looked = looked;
      this.showRates();
    });
    this.plot.setData(this.points.columns);
    this.showRates();
    this.showFacts();
    this.showDistributions();
    this.showLimiter();
    this.showClients();
  }

  /** Show the rates at the cursor or, if there is none, those of the last minute. */
  showRates() {
    const [at, ...rates] = this.looked === null ? [] : this.points.columns.map((column) => column[this.looked]);
    this.setText("when", at ? `at ${format.clock(at)}` : `in the last minute; plot of the last ${MINUTES} minutes`);
    ["inserted", "drawn", "updated"].forEach((name, i) => {
      const value = at ? rates[i] : this.figures[`${name}_per_s`];
      this.setText(`${name}_per_s`, value === null || value === undefined ? "–" : format.number(value));
    });
  }

  showFacts() {
    const { rows, drawable, inserted, drawn, updated, stale, bytes, unsynced, failed_syncs, lost, steps } = this.figures;
    const facts = [["rows", format.count(rows)]];
    if (drawable !== rows) facts.push(["drawable", format.count(drawable)]);
    if (steps) facts.push(["wait for later steps", format.count(steps.pending)], ["broken", format.count(steps.broken)]);
    facts.push(["inserted", format.count(inserted)], ["drawn", format.count(drawn)], ["updated", format.count(updated)]);
    facts.push(["stale updates", format.count(stale)], ["reserved", format.bytes(bytes)]);
    if (unsynced) facts.push(["not synced", format.count(unsynced)]);
    if (failed_syncs) facts.push(["failed syncs", format.count(failed_syncs)]);
    if (lost) facts.push(["lost to power losses", format.count(lost)]);
    this.part("facts").replaceChildren(
      ...facts.flatMap(([name, value]) => {
        const [term, data] = [document.createElement("dt"), document.createElement("dd")];
        term.textContent = name;
        data.textContent = value;
        data.dataset.fact = name;
        return [term, data];
      }),
    );
  }

  showDistributions() {
    const { priorities, ages_s: ages } = this.figures;
    showHistogram(this.part("priorities"), priorities, format.priority);
    showHistogram(this.part("ages"), ages, format.duration);
    if (priorities) {
      const { least, median, most, zeros } = priorities;
      const [low, middle, high] = [least, median, most].map(format.priority);
      const none = zeros ? `, ${format.percent(zeros)} are 0` : "";
      this.setText("priorities", least === most ? `all ${low}` : `${low} to ${high}, median ${middle}${none}`);
    }
    if (ages) {
      const median = format.duration(ages.median);
      this.setText("ages", ages.low === ages.high ? `all about ${median}` : `median ${median}`);
    }
  }

  showLimiter() {
    const limiter = this.figures.limiter;
    this.part("limiter").hidden = !limiter;
    if (!limiter) return;
    const { difference, least, most } = limiter;
    this.setText("limiter", `difference ${format.number(difference)}`);
    const gauge = this.part("limiter").querySelector(".gauge");
    gauge.hidden = least === null || most === null || least >= most;
    const place = Math.min(1, Math.max(0, (difference - least) / (most - least)));
    gauge.firstElementChild.style.left = `${100 * place}%`;
    const [left, right] = this.part("limiter").querySelectorAll(".ends span");
    left.textContent = least === null ? "draws never wait for inserts" : `draws wait at ${format.number(least)}`;
    right.textContent = most === null ? "inserts never wait" : `inserts wait at ${format.number(most)}`;
  }

  showClients() {
    const { clients, other_clients: others } = this.figures;
    this.part("clients").hidden = !clients.length;
    this.setText("clients", others ? `and ${format.count(others)} more` : "");
    const rows = clients.map((client) => [
      client.caller,
      `${format.count(client.streams)} ${client.role}${client.streams === 1 ? "" : "s"}`,
      format.number(client.rows_per_s),
      client.role === "learner" ? format.number(client.updates_per_s) : "",
    ]);
    fill(this.part("clients").querySelector("tbody"), rows);
  }
}

const cards = new Map();
const overview = new Overview(byId("overview"), openCard);
let version = null;
let lastEvent = 0;
let silentMs = SILENT_MS;
let before = null;
/** Whether the histories of all tables have been requested since the page connected. */
let hasHistories = false;

/** Open the card of a table, and move there. */
function openCard(name) {
  const { element } = cards.get(name);
  element.open = true;
  element.scrollIntoView({ block: "start" });
  element.querySelector("summary").focus({ preventScroll: true });
}

/** Load the histories of tables one after another, so that many tables take few connections. */
async function loadHistories() {
  hasHistories = true;
  for (const card of [...cards.values()]) await card.loadHistory();
}

function showTables(tables, at) {
  const wanted = byId("filter").value.toLowerCase();
  const names = new Set(tables.map((table) => table.name));
  for (const [name, card] of cards) {
    if (!names.has(name)) {
      card.element.remove();
      cards.delete(name);
    }
  }
  tables.forEach((figures, i) => {
    let card = cards.get(figures.name);
    if (!card) {
      card = new Card(figures.name, tables.length <= OPEN_CARDS);
      cards.set(figures.name, card);
      byId("tables").insertBefore(card.element, byId("tables").children[i] ?? null);
      if (hasHistories) card.loadHistory();
    }
    card.element.hidden = !figures.name.toLowerCase().includes(wanted);
    if (!card.element.hidden) card.show(figures);
    else card.points.append(figures.points);
  });
  if (!hasHistories) loadHistories();
  byId("overview").hidden = tables.length < 2;
  const shown = tables.filter((figures) => !cards.get(figures.name).element.hidden);
  if (tables.length > 1) overview.show(shown, (name) => cards.get(name).points.columns, at);
  byId("filter").hidden = tables.length <= OPEN_CARDS;
  byId("empty").hidden = tables.length > 0;
}

function showServer(server) {
  const parts = [`version ${server.version}`, server.state, `up ${format.duration(server.uptime_s)}`];
  if (before?.instance === server.instance) {
    const busy = (server.cpu_s - before.cpu_s) / (server.at - before.at);
    parts.push(`CPU ${format.percent(Math.round(100 * busy) / 100)}`);
  }
  parts.push(`memory ${format.bytes(server.resident_bytes)}`);
  parts.push(`${format.bytes(server.storage.free_bytes)} of ${format.bytes(server.storage.size_bytes)} free for tables`);
  byId("server").textContent = parts.join(" · ");
  before = server;
}

function showCalls(methods) {
  byId("calls").hidden = !methods.length;
  const rows = methods.map((method) => [
    method.name,
    format.number(method.calls_per_s),
    format.milliseconds(method.p50_ms),
    format.milliseconds(method.p99_ms),
    format.count(method.active),
    format.count(method.calls),
    format.count(method.errors),
  ]);
  fill(byId("calls").querySelector("tbody"), rows, "td", ["", "", "", "", "wide", "wide", ""]);
}

/** The page of another server: at its host in the shard map, and at the port of this page. */
function pageOf(address) {
  const page = new URL("/", location.href);
  page.hostname = address.slice(0, address.lastIndexOf(":"));
  return page.href;
}

/** Say which shard of a service this server is, and link to the pages of the others. */
function showPlace(place) {
  byId("place").hidden = !place;
  if (!place) return;
  const shown = JSON.stringify(place);
  if (byId("place").dataset.shown === shown) return; // so that a link keeps the focus
  byId("place").dataset.shown = shown;
  const which = place.shard === null ? "one shard" : `shard ${place.shard}`;
  const links = place.others.map(({ shard, address }) => {
    const link = document.createElement("a");
    link.href = pageOf(address);
    link.textContent = `shard ${shard} at ${address}`;
    return link;
  });
  byId("place").replaceChildren(
    `This page shows ${which} of ${place.servers}. The others: `,
    ...links.flatMap((link, i) => (i ? [", ", link] : [link])),
  );
}

function showCheckpoints(checkpoints, now) {
  byId("checkpoints").hidden = !checkpoints;
  byId("checkpoints").querySelector("table").hidden = !checkpoints?.length;
  byId("checkpoints").querySelector(".note").hidden = checkpoints?.length > 0;
  const rows = (checkpoints ?? []).map((found) => [
    found.name,
    format.duration(Math.max(0, now - found.taken_s)),
    format.date(found.taken_s),
    format.count(found.tables),
    format.bytes(found.bytes),
  ]);
  fill(byId("checkpoints").querySelector("tbody"), rows, "td", ["", "", "wide", "", ""]);
}

function setConnected(text, isLost) {
  byId("connection").textContent = text;
  byId("connection").classList.toggle("lost", isLost);
  document.body.classList.toggle("stale", isLost);
}

function show(server) {
  if (version !== null && version !== server.version) location.reload();
  version = server.version;
  silentMs = Math.max(SILENT_MS, 3 * (Date.now() - lastEvent)); // with many tables, events come less often
  lastEvent = Date.now();
  setConnected(`live, ${format.clock(server.at)}`, false);
  showServer(server);
  showTables(server.tables, server.at);
  showCalls(server.methods);
  showPlace(server.place);
  showCheckpoints(server.checkpoints, server.at);
}

let source = null;

function connect() {
  source?.close();
  source = null;
  if (document.hidden) return;
  lastEvent = Date.now();
  source = new EventSource("events");
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.onerror = (event) => {
    event.target.close();
    if (event.target !== source) return;
    setConnected("no connection to the server, trying again", true);
    setTimeout(connect, RETRY_MS);
  };
  hasHistories = false; // a restarted server may not have its tables yet: wait until it shows them
}

// A hidden page costs the server nothing.
document.addEventListener("visibilitychange", connect);
setInterval(() => {
  if (source && Date.now() - lastEvent > silentMs) {
    setConnected(`no news for ${format.duration((Date.now() - lastEvent) / 1000)}`, true);
  }
}, 1000);
byId("filter").addEventListener("input", () => before && showTables(before.tables, before.at));
connect();
