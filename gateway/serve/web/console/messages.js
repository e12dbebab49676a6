/** Messages to the person: toasts at the edge of the window, and errors beside the thing that failed. */

import {h} from "../core/dom.js";
import {icon} from "../core/icons.js";

const SHOWN_MS = 6000;
const MOST = 3;
const KINDS = {ok: "check", bad: "octagon", warn: "warn"};

/**
 * Show a short message; one of kind "bad" stays until it is closed.
 * @param {string} text
 * @param {{kind?: "ok" | "warn" | "bad", undo?: () => unknown}} [options]
 */
export function toast(text, {kind = "ok", undo} = {}) {
  const region = findRegion();
  while (region.childElementCount >= MOST) region.firstElementChild?.remove();
  let timer = 0;
  const close = () => { clearTimeout(timer); message.remove(); };
  const hold = () => clearTimeout(timer);
  const release = () => {
    clearTimeout(timer);
    if (kind !== "bad") timer = setTimeout(close, SHOWN_MS);
  };
  const message = h(
    "div", {class: `toast toast--${kind}`, role: kind === "bad" ? "alert" : "status", "data-testid": "toast"},
    icon(KINDS[kind] || "check"), h("p", {}, text),
    undo ? h("button", {class: "button button--quiet", type: "button", "data-testid": "toast.undo", onclick: () => { close(); undo(); }}, "Undo") : null,
    h("button", {class: "toast-close", type: "button", "aria-label": "Close this message", onclick: close}, icon("x")),
  );
  message.addEventListener("mouseenter", hold);
  message.addEventListener("focusin", hold);
  message.addEventListener("mouseleave", release);
  message.addEventListener("focusout", release);
  region.append(message);
  release();
  return close;
}

function findRegion() {
  let region = document.querySelector(".toasts");
  if (!region) {
    region = h("div", {class: "toasts", "aria-live": "polite"});
    document.body.append(region);
  }
  return region;
}

/**
 * What went wrong and what to do, with the code and a way to try again.
 * @param {{message: string, code?: string, requestId?: string | null}} error
 * @param {(() => unknown) | null} [retry]
 */
export function errorBanner(error, retry = null) {
  const reference = [error.code, error.requestId].filter(Boolean).join(", ");
  return h(
    "div", {class: "banner banner--bad", role: "alert", "data-testid": "error"},
    icon("octagon"),
    h("div", {}, h("p", {}, error.message), reference ? h("p", {class: "meta mono"}, reference) : null),
    retry ? h("button", {class: "button", type: "button", onclick: retry}, "Try again") : null,
  );
}

/**
 * Ask something that cannot be undone or needs more input. `body` are nodes; `accept` returns a promise, whose error is
 * shown in the dialog. The dialog closes when it is done.
 * @param {{title: string, body?: any, verb: string, final?: boolean, accept: (form: HTMLFormElement) => unknown}} options
 */
export function ask({title, body = null, verb, final = false, accept}) {
  const problem = h("div", {});
  const send = h("button", {class: `button ${final ? "button--final" : "button--primary"}`, type: "submit", "data-testid": "dialog.accept"}, verb);
  const form = h(
    "form", {class: "stack", method: "dialog"},
    h("h2", {}, title), body, problem,
    h("div", {class: "dialog__actions"}, h("button", {class: "button", type: "button", "data-testid": "dialog.cancel", onclick: () => dialog.close()}, "Cancel"), send),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      await accept(form);
      dialog.close();
    } catch (error) {
      problem.replaceChildren(errorBanner(error));
    } finally {
      send.disabled = false;
    }
  });
  const dialog = h("dialog", {class: "dialog", "data-testid": "dialog", "aria-label": title}, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
