/** The host's theme: light or dark, and those of its colours and fonts that are readable. */

/** Our token, the host's variable, and the contrast it needs on the host's background. @type {[string, string, number][]} */
const MAP = [
  ["--surface", "--color-background-primary", 0],
  ["--sunken", "--color-background-secondary", 0],
  ["--hover", "--color-background-secondary", 0],
  ["--ink", "--color-text-primary", 4.5],
  ["--ink-2", "--color-text-secondary", 4.5],
  ["--ink-3", "--color-text-secondary", 4.5],
  ["--line", "--color-border-tertiary", 0],
  ["--line-strong", "--color-border-secondary", 0],
  ["--focus", "--color-ring-primary", 3],
  ["--sans", "--font-sans", 0],
  ["--mono", "--font-mono", 0],
  ["--radius", "--border-radius-sm", 0],
  ["--radius-card", "--border-radius-md", 0],
];

/** @param {Record<string, any>} context of the host */
export function applyTheme(context) {
  const root = /** @type {HTMLElement} */ (document.getElementById("root"));
  if (context.theme === "light" || context.theme === "dark") document.documentElement.dataset.theme = context.theme;
  document.documentElement.lang ||= "en"; // some hosts drop the attributes of our document
  const fixed = context.containerDimensions?.height;
  root.style.height = typeof fixed === "number" ? `${fixed}px` : "";
  root.classList.toggle("is-fixed", typeof fixed === "number");
  const insets = context.safeAreaInsets;
  root.style.padding = insets ? [insets.top, insets.right, insets.bottom, insets.left].map((inset) => `${Number(inset) || 0}px`).join(" ") : "";
  applyVariables(context.styles?.variables ?? {});
}

/** @param {Record<string, string>} variables */
function applyVariables(variables) {
  const { style } = document.documentElement;
  for (const [token] of MAP) style.removeProperty(token);
  const backgrounds = ["--color-background-primary", "--color-background-secondary"].map((name) => toPixel(variables[name])).filter((pixel) => pixel !== null);
  for (const [token, name, minimum] of MAP) {
    const value = variables[name];
    if (typeof value !== "string" || !value || value.length > 400) continue;
    if (minimum > 0) {
      const colour = toPixel(value);
      if (!colour || !backgrounds.length || backgrounds.some((background) => contrast(colour, background) < minimum)) continue;
    }
    style.setProperty(token, value);
  }
}

/** The colour as the browser paints it; null if it is none or not opaque. @param {string | undefined} value */
function toPixel(value) {
  if (!value || !CSS.supports("color", value)) return null;
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const painter = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  if (painter) {
    painter.fillStyle = getComputedStyle(probe).color;
    painter.fillRect(0, 0, 1, 1);
  }
  probe.remove();
  const pixel = painter?.getImageData(0, 0, 1, 1).data;
  return pixel && pixel[3] === 255 ? pixel : null;
}

/** @param {Uint8ClampedArray} one @param {Uint8ClampedArray} other */
function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

/** @param {Uint8ClampedArray} pixel */
function luminance(pixel) {
  const [red, green, blue] = [...pixel].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
