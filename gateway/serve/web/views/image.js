/** The view of images; a result without one is shown by its kind. */
import { startView } from "./layout.js";
import { drawResult } from "./result.js";

startView("image", drawResult, { plan: "none" });
