// The plot of a table's rates, and histograms.

import * as format from "./format.js";

export const MINUTES = 10;
const SERIES = ["inserted", "drawn", "updated"];
const COLUMNS = ["at", ...SERIES];
const GAP_S = 10;
const HEIGHT = 180;

/** Rates of a table, oldest first; null where the server did not answer. */
export class Points {
  constructor() {
    this.columns = COLUMNS.map(() => []);
    this.spacing = 0; // seconds between the last two points; with many tables, points come less often
  }

  get last() {
    return this.columns[0].at(-1) ?? -Infinity;
  }

  /** Replace points with the server's history. Keep points from before its history begins, such as before a restart. */
  merge(history) {
    const first = history.at[0] ?? Infinity;
    const kept = this.columns[0].filter((at) => at < first).length;
    this.columns = this.columns.map((column) => column.slice(0, kept));
    this.append(history);
  }

  append(points) {
    points.at.forEach((at, i) => {
      if (at <= this.last) return;
      const spacing = this.columns[0].length ? at - this.last : 0;
      if (spacing > Math.max(GAP_S, 3 * this.spacing)) this.push([this.last + 1, null, null, null]);
      this.spacing = spacing;
      this.push(COLUMNS.map((name) => points[name][i]));
    });
    const old = this.columns[0].findIndex((at) => at >= this.last - 60 * MINUTES);
    if (old > 0) this.columns.forEach((column) => column.splice(0, old));
  }

  push(values) {
    values.forEach((value, i) => this.columns[i].push(value));
  }
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** Plot rates; `onLook` gets the index of the point below the cursor, or null. */
export function ratesPlot(element, points, onLook) {
  const axis = { stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false } };
  const options = {
    width: Math.max(element.clientWidth, 100),
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { range: () => [points.last - 60 * MINUTES, points.last] },
      y: { range: (_, __, most) => [0, Math.max(1, 1.1 * most)] },
    },
    axes: [{ ...axis, space: 80, size: 28, values: (_, ticks) => ticks.map(format.minute) }, { ...axis, size: 48, values: (_, ticks) => ticks.map(format.short) }],
    series: [
      {},
      ...SERIES.map((name) => ({
        stroke: () => color(`--${name}`),
        width: 2,
        dash: name === "updated" ? [4, 6] : undefined, // often hides or is hidden by what is drawn
        points: { show: false },
      })),
    ],
    hooks: { setCursor: [(plot) => onLook(plot.cursor.idx ?? null)] },
  };
  const plot = new uPlot(options, points.columns, element);
  new ResizeObserver(() => {
    if (element.clientWidth) plot.setSize({ width: element.clientWidth, height: HEIGHT });
  }).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
  return plot;
}

/** Show a histogram in a figure, which has elements for the bars and for the values at both ends. */
export function showHistogram(figure, histogram, text) {
  figure.hidden = !histogram;
  if (!histogram) return;
  figure.querySelector(".shape").hidden = histogram.low === histogram.high;
  const { low, high, logarithmic, fractions } = histogram;
  const edge = (i) => {
    const part = i / fractions.length;
    return logarithmic ? low * (high / low) ** part : low + (high - low) * part;
  };
  const bars = figure.querySelector(".bars");
  while (bars.children.length > fractions.length) bars.lastChild.remove();
  while (bars.children.length < fractions.length) bars.append(document.createElement("div"));
  const most = Math.max(...fractions);
  fractions.forEach((fraction, i) => {
    const bar = bars.children[i];
    bar.style.height = fraction ? `${Math.max(2, (100 * fraction) / most)}%` : "0";
    bar.title = `${text(edge(i))} to ${text(edge(i + 1))}: ${format.percent(fraction)}`;
  });
  const [left, right] = figure.querySelectorAll(".ends span");
  left.textContent = text(low);
  right.textContent = text(high);
}
