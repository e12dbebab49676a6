/** The view of a list of records. */
import { startView } from "./layout.js";
import { drawTable } from "./result.js";

startView("table", drawTable, { plan: "none" });
