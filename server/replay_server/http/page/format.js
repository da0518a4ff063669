// Figures as text.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const PRECISE = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export const count = (value) => GROUPED.format(value);

export const short = (value) => SHORT.format(value);

export const number = (value) => (Math.abs(value) >= 100 ? GROUPED : PRECISE).format(value);

export function priority(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e7) ? value.toExponential(1) : number(value);
}

export const percent = (fraction) => `${number(100 * fraction)} %`;

export function bytes(value) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${number(value / 1000 ** power)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function duration(seconds) {
  if (seconds < 10) return `${PRECISE.format(seconds)} s`;
  const [size, unit] = UNITS.find(([size]) => seconds >= 2 * size);
  return `${GROUPED.format(seconds / size)} ${unit}`;
}

export const milliseconds = (value) => (value ? `${number(value)} ms` : "–");

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString();

export const minute = (seconds) =>
  new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

export const date = (seconds) => new Date(1000 * seconds).toLocaleString();
