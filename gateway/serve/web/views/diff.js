/** The view of what a call changed. */
import { startView } from "./layout.js";
import { drawDiff } from "./result.js";

startView("diff", drawDiff, { plan: "none" });
