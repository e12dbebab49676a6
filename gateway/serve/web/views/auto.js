/** The view that chooses by the plan, for tools that call other tools; results without a plan are shown by their kind. */
import { drawArtifact } from "./artifact.js";
import { drawFile } from "./file.js";
import { startView } from "./layout.js";
import { drawResult } from "./result.js";
import { drawWebsite } from "./website.js";

/** @type {Record<string, import("./layout.js").Draw>} */
const RENDERERS = { code: drawFile, document: drawFile, html: drawArtifact, frame: drawWebsite };

startView("auto", (host, shown) => (RENDERERS[shown.plan?.renderer ?? ""] ?? drawResult)(host, shown), { plan: "optional" });
