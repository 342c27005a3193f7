// Values, numbers and times as text for people. Times are shown in UTC, as documents have them.

const NUMBER = new Intl.NumberFormat("en");

export const number = (value) => NUMBER.format(value);

export function count(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** Small sums keep their first two digits. */
export function usd(value) {
  if (!value) return "$0";
  if (value >= 1) return `$${value.toFixed(2)}`;
  const digits = Math.min(12, 1 - Math.floor(Math.log10(value)));
  return `$${value.toFixed(digits)}`;
}

export function time(text) {
  return text ? String(text).replace("T", " ").replace(/\.\d+/, "").replace("Z", "") : "";
}

/** "3 minutes ago", "in 2 days". */
export function relative(text, now = Date.now()) {
  const seconds = (Date.parse(text) - now) / 1000;
  if (Number.isNaN(seconds)) return "";
  const size = Math.abs(seconds);
  if (size < 5) return "just now";
  const [unit, each] = [
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
    ["second", 1],
  ].find(([, each]) => size >= each) ?? ["second", 1];
  const amount = count(Math.floor(size / each), unit);
  return seconds < 0 ? `${amount} ago` : `in ${amount}`;
}

/** What is left: "29 d 23 h", "4 h 12 min", "59 s". */
export function countdown(text, now = Date.now()) {
  let left = Math.floor((Date.parse(text) - now) / 1000);
  if (Number.isNaN(left)) return "";
  if (left <= 0) return "expired";
  const parts = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ].flatMap(([unit, each]) => {
    const amount = Math.floor(left / each);
    left -= amount * each;
    return amount ? [`${amount} ${unit}`] : [];
  });
  return parts.slice(0, 2).join(" ");
}

/** One line for a cell: texts as they are, lists of texts by commas, everything else as JSON. */
export function cell(value) {
  if (value === undefined) return "";
  if (Array.isArray(value) && value.length && value.every((one) => typeof one === "string")) return value.join(", ");
  if (typeof value === "string") return value;
  if (typeof value === "number") return String(value);
  return JSON.stringify(value);
}

/** The time of a tick on an axis of so many seconds, in UTC. */
export function tick(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  if (span > 2 * 86400) return text.slice(5, 10);
  return span > 600 ? text.slice(11, 16) : text.slice(11, 19);
}

export const pretty = (value) => (value === undefined ? "" : JSON.stringify(value, null, 2));
