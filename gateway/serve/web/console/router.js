/** Addresses of the console: patterns, and the history of the browser. */

/**
 * Match a path against a pattern. `{name}` is one part, `{name?}` may be missing, `{+name}` takes slashes too.
 * @param {string} pattern
 * @param {string} path as in the address, encoded
 * @returns {Record<string, string> | null} the decoded values
 */
export function matchPath(pattern, path) {
  const wanted = pattern.split("/").filter(Boolean);
  const given = path.split("/").filter(Boolean);
  /** @type {Record<string, string>} */
  const params = {};
  for (let index = 0; index < wanted.length; index += 1) {
    const variable = /^\{(\+?)(\w+)(\??)\}$/.exec(wanted[index]);
    if (variable === null) {
      if (given[index] !== wanted[index]) return null;
      continue;
    }
    const [, rest, name, optional] = variable;
    if (index >= given.length) {
      if (!optional) return null;
      continue;
    }
    try {
      const parts = (rest ? given.slice(index) : [given[index]]).map(decodeURIComponent);
      params[name] = parts.join("/");
    } catch {
      return null;
    }
    if (rest) return params;
  }
  return given.length > wanted.length ? null : params;
}

/** Whether a path belongs to the console, so that it is opened without loading the page again. */
export function isConsolePath(path) {
  return path === "/" || path === "/console" || path.startsWith("/console/");
}

/**
 * Call `show` for the address now and whenever it changes: by a link, the browser's buttons, or `navigate`.
 * @param {(change: "load" | "push" | "replace" | "pop") => void} show
 * @returns {(url: string, options?: {replace?: boolean}) => void} navigate. With `replace` on the same path only the
 * address changes, since the page shows already what it changed.
 */
export function startRouter(show) {
  const navigate = (url, {replace = false} = {}) => {
    const target = new URL(url, location.href);
    if (target.origin !== location.origin || !isConsolePath(target.pathname)) {
      location.assign(target.href);
      return;
    }
    const isSamePath = target.pathname === location.pathname;
    history[replace ? "replaceState" : "pushState"](null, "", target.href);
    if (!(replace && isSamePath)) show(replace ? "replace" : "push");
  };
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? /** @type {HTMLAnchorElement | null} */ (event.target.closest("a[href]")) : null;
    if (!link || link.target || link.hasAttribute("download")) return;
    const target = new URL(link.href, location.href);
    if (target.origin !== location.origin || !isConsolePath(target.pathname)) return;
    const isAnchor = target.hash && target.pathname === location.pathname && target.search === location.search;
    if (isAnchor) return;
    event.preventDefault();
    navigate(target.href);
  });
  addEventListener("popstate", () => show("pop"));
  return navigate;
}
