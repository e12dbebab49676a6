/** A page of several parts, such as a list and one of its items: the part that the address names is drawn. */

import {replace} from "../core/dom.js";
import {errorBanner} from "./messages.js";

/** @typedef {{key: string, endings: (() => void)[], abort: AbortController, update: ((context: any) => void) | null}} Part */

/**
 * Draw the part of an address, and another one when the address changes.
 * @param {any} context what the shell gives a page
 * @param {(context: any) => {key: string, render: (context: any) => any}} choose the part of an address. A part whose
 *   `key` stays is told of the change by the `update` it returned, where it has one.
 */
export async function renderParts(context, choose) {
  /** @type {Part | null} */
  let current = null;

  function leave() {
    current?.abort.abort();
    for (const end of current?.endings.reverse() ?? []) end();
    current = null;
  }

  async function open(next) {
    leave();
    const {key, render} = choose(next);
    /** @type {Part} */
    const mine = {key, endings: [], abort: new AbortController(), update: null};
    current = mine;
    replace(context.root);
    const given = {...next, root: context.root, signal: mine.abort.signal, onLeave: (end) => mine.endings.push(end)};
    const handle = await render(given);
    mine.update = handle?.update ?? null;
  }

  context.onLeave(leave);
  await open(context);
  return {
    async update(next) {
      if (current?.update && choose(next).key === current.key) {
        current.update(next);
        return;
      }
      try {
        await open(next);
        const title = context.root.querySelector("h1");
        title?.setAttribute("tabindex", "-1");
        title?.focus({preventScroll: true});
      } catch (error) {
        if (error.name !== "AbortError") replace(context.root, errorBanner(error, () => this.update(next)));
      }
    },
  };
}
