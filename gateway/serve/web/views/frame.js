/** The view of the `frame` renderer. */
import { startView } from "./layout.js";
import { drawWebsite } from "./website.js";

startView("frame", drawWebsite);
