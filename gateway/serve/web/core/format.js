/** Times, durations, sizes and counts as the design writes them. */

const count = new Intl.NumberFormat("en");

/** @param {number | string | Date} value */
function toDate(value) {
  return value instanceof Date ? value : new Date(value);
}

/** @param {Date} date @param {Intl.DateTimeFormatOptions} options */
function part(date, options) {
  return new Intl.DateTimeFormat("en-GB", options).format(date);
}

/**
 * A moment: today `14:27:41`, this year `28 Oct, 14:27`, else `28 Oct 2025`.
 * @param {number | string | Date | null | undefined} value milliseconds, ISO text or a date
 * @param {Date} [now]
 */
export function formatTime(value, now = new Date()) {
  if (value === null || value === undefined || value === "") return "never";
  const date = toDate(value);
  if (Number.isNaN(date.getTime())) return "unknown";
  if (date.toDateString() === now.toDateString()) {
    return part(date, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  }
  if (date.getFullYear() === now.getFullYear()) {
    return `${part(date, { day: "numeric", month: "short" })}, ${part(date, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" })}`;
  }
  return part(date, { day: "numeric", month: "short", year: "numeric" });
}

/** The exact moment, for tooltips. @param {number | string | Date} value */
export function formatExactTime(value) {
  const date = toDate(value);
  return Number.isNaN(date.getTime()) ? "unknown" : part(date, { dateStyle: "medium", timeStyle: "long" });
}

/**
 * `in 4 min`, `36 min ago`; for what is coming or just was.
 * @param {number | string | Date} value
 * @param {Date} [now]
 */
export function formatRelative(value, now = new Date()) {
  const milliseconds = toDate(value).getTime() - now.getTime();
  const seconds = Math.abs(milliseconds) / 1000;
  if (seconds < 5) return "now";
  const [size, unit] = seconds < 60 ? [1, "s"] : seconds < 3600 ? [60, "min"] : seconds < 86400 ? [3600, "h"] : [86400, "d"];
  const amount = `${Math.floor(seconds / Number(size))} ${unit}`;
  return milliseconds > 0 ? `in ${amount}` : `${amount} ago`;
}

/** `0.2 ms`, `842 ms`, `1.24 s`, `2 min 5 s`. @param {number | null | undefined} milliseconds */
export function formatDuration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined || !Number.isFinite(milliseconds)) return "–";
  if (milliseconds < 9.95) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 999.5) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 9_995) return `${(milliseconds / 1000).toFixed(2)} s`;
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return `${(milliseconds / 1000).toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** `0 B`, `842 B`, `1.2 KB`, `412 MB`. @param {number | null | undefined} bytes */
export function formatSize(bytes) {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return "–";
  if (bytes < 1000) return `${bytes} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let value = bytes / 1000;
  let unit = 0;
  for (; value >= 999.5 && unit < units.length - 1; unit++) value /= 1000;
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** `1,284`. @param {number | null | undefined} value */
export function formatCount(value) {
  return value === null || value === undefined ? "–" : count.format(value);
}

/** `1 tool`, `1,284 tools`. @param {number} value @param {string} one @param {string} [many] */
export function plural(value, one, many = `${one}s`) {
  return `${formatCount(value)} ${value === 1 ? one : many}`;
}

/** `412 tokens`; an estimate is marked. @param {number} value @param {boolean} [estimate] */
export function formatTokens(value, estimate = false) {
  return `${estimate ? "about " : ""}${plural(value, "token")}`;
}

/** `2.4 %`, `31 %`. @param {number} fraction */
export function formatPercent(fraction) {
  const percent = fraction * 100;
  return `${percent !== 0 && percent < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** Cut a long name in the middle; show the whole as a tooltip. @param {string} text @param {number} [limit] */
export function shorten(text, limit = 48) {
  if (text.length <= limit) return text;
  const half = Math.floor((limit - 1) / 2);
  return `${text.slice(0, limit - 1 - half)}…${text.slice(text.length - half)}`;
}
