// One line for each table, those with problems first.

import * as format from "./format.js";

const MINUTE_S = 60;
const STALE = 0.01; // fraction of updates that came too late from which it is a problem
const WIDTH = 120;
const HEIGHT = 16;
const SVG = "http://www.w3.org/2000/svg";
const SHOWN = ["inserted", "drawn", "updated"];

/** Which fraction of the updates in the last minute were stale. */
class StaleShare {
  constructor() {
    this.counts = []; // [at, updated, stale], oldest first
  }

  append(at, updated, stale) {
    if (this.counts.length && stale < this.counts.at(-1)[2]) this.counts = []; // the server was started again
    this.counts.push([at, updated, stale]);
    while (this.counts[0][0] < at - MINUTE_S) this.counts.shift();
  }

  get value() {
    const [first, last] = [this.counts[0], this.counts.at(-1)];
    const [updated, stale] = [last[1] - first[1], last[2] - first[2]];
    return stale ? stale / (updated + stale) : 0;
  }
}

/** The line of a table. */
class Line {
  constructor(name, open) {
    this.stale = new StaleShare();
    this.rank = 0;
    this.element = document.createElement("tr");
    const header = document.createElement("th");
    header.scope = "row";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", open);
    header.append(button);
    this.problem = this.cell("problem");
    this.fill = this.cell("wide");
    this.rates = SHOWN.map((series) => this.cell(series === "updated" ? `${series} wide` : series));
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("role", "img");
    this.lines = SHOWN.slice(0, 2).map((series) => {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("class", series);
      this.svg.append(line);
      return line;
    });
    const plot = this.cell("wide");
    plot.append(this.svg);
    this.element.append(header, this.problem, this.fill, ...this.rates, plot);
  }

  cell(name = "") {
    const cell = document.createElement("td");
    cell.className = name;
    return cell;
  }

  show(figures, columns, at) {
    this.stale.append(at, figures.updated, figures.stale);
    const problems = problemsOf(figures, this.stale.value);
    this.rank = problems.length ? problems[0].rank : 0;
    this.problem.textContent = problems.map((problem) => problem.text).join("; ") || "–";
    this.element.classList.toggle("bad", this.rank > 0);
    this.fill.textContent = format.percent(Math.round((100 * figures.rows) / figures.capacity) / 100);
    SHOWN.forEach((series, i) => {
      this.rates[i].textContent = format.short(figures[`${series}_per_s`]);
    });
    this.draw(columns);
  }

  draw([times, ...series]) {
    const last = times.at(-1) ?? 0;
    const first = Math.min(times[0] ?? 0, last - MINUTE_S);
    const most = Math.max(1, ...series.slice(0, 2).flat());
    this.lines.forEach((line, i) => {
      const points = times.flatMap((at, j) => {
        if (series[i][j] === null) return [];
        const x = (WIDTH * (at - first)) / (last - first);
        return [`${x.toFixed(1)},${(HEIGHT - 1 - ((HEIGHT - 2) * series[i][j]) / most).toFixed(1)}`];
      });
      line.setAttribute("points", points.join(" "));
    });
    this.svg.setAttribute("aria-label", `rows per second: at most ${format.short(most)}`);
  }
}

/** What is wrong with a table, worst first. */
function problemsOf(figures, stale) {
  const found = figures.waits.map((text) => ({ rank: /^[\d,]+ writers? wait/.test(text) ? 4 : 3, text }));
  if (figures.failed_syncs) found.push({ rank: 5, text: `${format.count(figures.failed_syncs)} syncs failed` });
  if (stale >= STALE) found.push({ rank: 2, text: `${format.percent(Math.round(100 * stale) / 100)} of updates are stale` });
  if (figures.lost) found.push({ rank: 1, text: `${format.count(figures.lost)} rows lost to power losses` });
  return found.sort((one, other) => other.rank - one.rank);
}

/** All lines, in a table of HTML. */
export class Overview {
  /** `open` is called with the name of a table that the user chooses. */
  constructor(element, open) {
    this.body = element.querySelector("tbody");
    this.open = open;
    this.lines = new Map();
  }

  /** Show tables; `columnsOf` returns the points of one by its name. */
  show(tables, columnsOf, at) {
    const names = new Set(tables.map((table) => table.name));
    for (const [name, line] of this.lines) {
      if (names.has(name)) continue;
      line.element.remove();
      this.lines.delete(name);
    }
    for (const figures of tables) {
      const { name } = figures;
      if (!this.lines.has(name)) this.lines.set(name, new Line(name, () => this.open(name)));
      this.lines.get(name).show(figures, columnsOf(name), at);
    }
    this.sort(tables.map((table) => this.lines.get(table.name)));
  }

  /** Sort by rank. Lines of the same rank stay in the server's order, and an element that has the focus keeps it. */
  sort(lines) {
    const sorted = lines.sort((one, other) => other.rank - one.rank);
    const focused = document.activeElement;
    sorted.forEach((line, i) => {
      if (this.body.children[i] !== line.element) this.body.insertBefore(line.element, this.body.children[i] ?? null);
    });
    if (this.body.contains(focused) && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
}
