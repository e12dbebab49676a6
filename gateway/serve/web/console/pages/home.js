/** Home: what works, what needs a person, what happened lately, and how a client is connected. */

import {h} from "../../core/dom.js";

export const page = {
  path: "/",
  title: "Home",
  icon: "home",
  async render({root}) {
    root.append(h("header", {class: "page-head"}, h("h1", {}, "Home")));
  },
};
